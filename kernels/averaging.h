// What brings ranks together again that trained apart for some steps, beside `scale` (arithmetic.h), which makes a mean
// of a sum over ranks. One pass over memory each; all f32 [n].
//
//   outer_step      anchor, momentum, average → master; (anchor, momentum in place): with d = anchor − factor · average
//   (the way all
//                   ranks went since the anchor, as a gradient): momentum = μ · momentum + d,
//                   anchor −= lr (nesterov ? d + μ · momentum : momentum), master = anchor. master may be the memory of
//                   average.
//   apply_delayed   master, snapshot, average → (master in place): master += factor · average − snapshot: the mean of
//   what all ranks had
//                   at some step comes in place of what this rank had there (snapshot); what it did since stays
//
// `average` is the sum over the ranks, factor one over their number. Attributes: factor; lr, momentum (μ), nesterov.
// Sources: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017; Stich,
// "Local SGD Converges Fast and Communicates Little", 2019; Douillard et al., "DiLoCo", 2023, algorithm 1 (outer
// Nesterov).
#pragma once
