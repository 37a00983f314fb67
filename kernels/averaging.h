// Brings ranks together again that trained apart for some steps. (The mean of a sum over ranks is `scale` of
// arithmetic.h.) One pass over memory each; all operands are f32 [n].
//
//   outer_gradient  anchor, master → gradient = anchor − master: the way that this rank went since the anchor, as a
//                   gradient. It may be the memory of master.
//   outer_step      anchor, momentum, gradient → master; (anchor, momentum in place).
//                   With d = factor · gradient, the mean way of all ranks:
//                   momentum = μ · momentum + d,
//                   anchor −= lr (nesterov ? d + μ · momentum : momentum),
//                   master = anchor. master may be the memory of gradient.
//   apply_delayed   master, snapshot, average → (master in place): master += factor · average − snapshot.
//                   The mean of what all ranks had at some step replaces what this rank had there (snapshot);
//                   what the rank did since then stays
//
// `gradient` of outer_step and `average` are sums over the ranks, factor one over their number. Attributes: factor; lr,
// momentum (μ), nesterov. Sources: McMahan et al., "Communication-Efficient Learning of Deep Networks from
// Decentralized Data", 2017; Stich, "Local SGD Converges Fast and Communicates Little", 2019; Douillard et al.,
// "DiLoCo", 2023, algorithm 1 (outer Nesterov).
#pragma once
