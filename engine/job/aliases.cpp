// The tables of other tools' words, and how they are looked up.
#include "engine/job/aliases.h"

#include <cctype>
#include <map>
#include <string>

namespace trainer {
namespace {

struct Row {
  std::string_view words;  ///< separated by spaces
  Alias alias;
};

struct ValueRow {
  std::string_view paths;  ///< of the keys, separated by spaces
  std::string_view words;
  Alias alias;
};

constexpr std::string_view kEpochs =
    "a job counts steps: one epoch is the number of training samples / train.batch.global steps";
constexpr std::string_view kTokens = "a job counts steps: a step is train.batch.global * data.seq_len tokens";
constexpr std::string_view kAccumulation =
    "accumulation follows from train.batch: `global` samples a step, `micro` samples at a time on each rank";
constexpr std::string_view kParams = "a param of the graph";
constexpr std::string_view kAdapter = "LoRA beside model.init_from";
constexpr std::string_view kReports = "TensorBoard files and a JSON line per step can be written for other tools";
constexpr std::string_view kDataRanks =
    "data ranks are what tensor and pipeline degrees leave of all ranks; this says what they shard";

// Keys, wherever they stand.
const Row kKeys[] = {
    {"epochs epoch num_epochs n_epochs num_train_epochs max_epochs max_epoch", {"train.steps", kEpochs}},
    {"max_steps num_steps n_steps total_steps iterations iters max_iters train_iters total_iters training_steps "
     "max_train_steps "
     "num_training_steps num_iterations train_steps max_iterations",
     {"train.steps", ""}},
    {"max_tokens total_tokens num_tokens train_tokens token_budget", {"train.steps", kTokens}},
    {"batch_size train_batch_size global_batch_size total_batch_size global_batch bs gbs num_batch",
     {"train.batch.global", ""}},
    {"micro_batch_size micro_batch microbatch microbatch_size mbs per_device_train_batch_size per_device_batch_size "
     "device_batch_size "
     "local_batch_size train_micro_batch_size_per_gpu batch_size_per_gpu rank_batch_size",
     {"train.batch.micro", ""}},
    {"grad_accum gradient_accumulation gradient_accumulation_steps grad_accumulation grad_accumulation_steps "
     "accumulation_steps "
     "accumulate_grad_batches accum_steps grad_accum_steps accumulation num_microbatches n_microbatches microbatches "
     "num_micro_batches",
     {"train.batch.micro", kAccumulation}},
    {"lr learning_rate max_lr peak_lr base_lr learningrate", {"train.optimizer.lr", ""}},
    {"optim optimiser opt optimizer optimizer_type", {"train.optimizer", ""}},
    {"optimizer_name", {"train.optimizer.name", ""}},
    {"param_groups parameter_groups optimizer_groups no_decay no_weight_decay paramgroups",
     {"train.groups", "a list of {match: [globs], optimizer: {…}}"}},
    {"wd weight_decay weightdecay l2", {"train.optimizer.weight_decay", ""}},
    {"beta1 beta2 adam_beta1 adam_beta2 betas beta",
     {"train.optimizer.betas", "both decay rates in one list, as [0.9, 0.95]"}},
    {"eps epsilon adam_epsilon adam_eps", {"train.optimizer.eps", ""}},
    {"momentum", {"train.optimizer.momentum", "of sgd and muon"}},
    {"lr_scheduler scheduler lr_scheduler_type schedule lr_schedule lr_decay_style lr_policy learning_rate_schedule",
     {"train.lr_schedule", ""}},
    {"warmup warmup_steps warmup_iters num_warmup_steps lr_warmup_steps lr_warmup_iters warm_up",
     {"train.lr_schedule.warmup_steps", ""}},
    {"warmup_ratio warmup_fraction warmup_epochs warmup_tokens", {"train.lr_schedule.warmup_steps", "in steps"}},
    {"min_lr lr_min final_lr eta_min end_lr min_learning_rate lr_end", {"train.lr_schedule.min_lr", ""}},
    {"min_lr_ratio min_lr_rate min_lr_fraction final_div_factor",
     {"train.lr_schedule.min_lr", "the rate itself, not a fraction of lr"}},
    {"lr_decay_iters decay_iters lr_decay_steps decay_lr lr_decay",
     {"train.lr_schedule", "linear and cosine fall over all of train.steps"}},
    {"decay_steps cooldown cooldown_steps stable_steps", {"train.lr_schedule.decay_steps", "of wsd"}},
    {"grad_clip gradient_clip gradient_clipping gradient_clip_val max_grad_norm clip_grad clip_grad_norm max_norm clip "
     "clip_norm grad_norm "
     "clip_gradients grad_norm_clip clip_value",
     {"train.clip_norm", ""}},
    {"bf16 fp16 fp32 tf32 mixed_precision amp dtype torch_dtype autocast half param_dtype compute_dtype bfloat16 "
     "float16",
     {"precision.compute", "f32, bf16 or f16"}},
    {"fp8 float8", {"precision.matmul", "fp8: products of linears in blocks, of bf16 values"}},
    {"load_in_8bit load_in_4bit bnb_4bit_quant_type quantization quantize",
     {"model.quantize", "int8 or nf4, of weights that are frozen beside an adapter"}},
    {"loss_scaling grad_scaler gradscaler initial_scale_power", {"precision.loss_scale", ""}},
    {"gradient_checkpointing grad_checkpointing activation_checkpoint remat recompute recomputation "
     "recompute_granularity "
     "checkpoint_activations use_checkpoint ac",
     {"activation_checkpointing", ""}},
    {"training trainer training_args train_config", {"train", ""}},
    {"gpus num_gpus n_gpus ngpus n_gpu devices num_devices nproc_per_node nproc gpus_per_node world_size num_processes "
     "ranks num_ranks "
     "processes_per_node tasks_per_node",
     {"cluster.devices_per_node", "ranks of one machine"}},
    {"num_nodes nnodes n_nodes num_machines machines nodes", {"cluster.nodes", ""}},
    {"device accelerator device_type", {"cluster.device", ""}},
    {"gpu gpu_type machine hardware gpu_model device_name", {"cluster.hardware", ""}},
    {"memory max_memory gpu_memory vram memory_budget", {"cluster.memory_limit", ""}},
    {"price cost_per_hour price_per_hour", {"cluster.price_per_device_hour", ""}},
    {"backend dist_backend ddp_backend", {"cluster.backend", ""}},
    {"dataset datasets data_path dataset_path train_file train_files train_data train_dataset data_dir data_files "
     "corpus input_file",
     {"data.train", ""}},
    {"files file path paths source", {"data.train", ""}},
    {"val_file val_files validation val_data valid validation_split val_split val_fraction val_ratio dev eval_file "
     "eval_data eval_dataset "
     "val_set_size test_size validation_file val_path val_dataset test val",
     {"data.val", ""}},
    {"block_size sequence_length sequence_len max_seq_len max_length max_len ctx_len context_length seq_length seqlen "
     "max_seq_length n_ctx "
     "max_position_embeddings context_size seq_len",
     {"data.seq_len", ""}},
    {"tokenizer tokenizer_name tokenizer_path tokenizer_type", {"data.tokenizer", ""}},
    {"format data_type data_format dataset_type", {"data.format", ""}},
    {"vocab_size n_vocab vocabulary", {"model.with.vocab", kParams}},
    {"n_layer n_layers num_layers num_hidden_layers depth layers", {"model.with.layers", kParams}},
    {"n_head n_heads num_heads num_attention_heads heads", {"model.with.heads", kParams}},
    {"n_kv_heads num_kv_heads num_key_value_heads kv_heads", {"model.with.kv_heads", kParams}},
    {"n_embd hidden_size d_model embed_dim embedding_dim hidden_dim model_dim n_embed width dim",
     {"model.with.dim", kParams}},
    {"intermediate_size ffn_hidden_size d_ff ffn_dim", {"model.with.hidden", kParams}},
    {"dropout attn_dropout resid_pdrop", {"model.with.dropout", kParams}},
    {"architecture arch model_type model_name model_class", {"model.graph", ""}},
    {"params hparams kwargs model_args model_config config overrides", {"model.with", ""}},
    {"pretrained from_pretrained pretrained_model model_name_or_path base_model init_checkpoint load_from weights init "
     "init_weights "
     "finetune_from load_weights init_from",
     {"model.init_from", ""}},
    {"parallelism distributed parallel distributed_strategy ddp fsdp deepspeed zero fsdp_config",
     {"strategy", "for example strategy: fsdp"}},
    {"zero_stage stage zero_optimization", {"strategy.data.kind", "zero1, zero2 or zero3"}},
    {"sharding_strategy fsdp_sharding shard_strategy", {"strategy.data.sharding", ""}},
    {"tensor_parallel tp tensor_parallel_size tensor_model_parallel_size tp_size tp_degree tensor_parallelism",
     {"strategy.tensor.degree", ""}},
    {"pipeline_parallel pp pipeline_parallel_size pipeline_model_parallel_size pp_size pp_degree num_stages stages "
     "pipeline_parallelism",
     {"strategy.pipeline.degree", ""}},
    {"data_parallel dp data_parallel_size dp_size dp_degree dp_replicate dp_shard", {"strategy.data", kDataRanks}},
    {"sequence_parallel sp", {"strategy.tensor.sequence_parallel", ""}},
    {"context_parallel cp context_parallel_size context_parallel_degree cp_size cp_degree",
     {"strategy.context.degree", ""}},
    {"expert_parallel ep expert_parallel_size expert_parallel_degree expert_model_parallel_size ep_size ep_degree "
     "moe_ep_size",
     {"strategy.expert.degree", ""}},
    {"offload cpu_offload offload_optimizer optimizer_offload",
     {"strategy.offload.optimizer", "host beside a GPU, disk on a CPU"}},
    {"cpu_adam deepspeedcpuadam optimizer_cpu_offload offload_update",
     {"strategy.offload.update", "host, beside strategy.offload.optimizer: host"}},
    {"out_dir output_dir save_dir checkpoint_dir ckpt_dir default_root_dir save_path checkpoint_path output run_dir",
     {"checkpoint.dir", ""}},
    {"save_steps save_interval save_every checkpoint_every checkpoint_interval ckpt_every save_freq ckpt_interval",
     {"checkpoint.every", ""}},
    {"save_total_limit keep_last keep_last_n max_to_keep save_top_k num_keep",
     {"checkpoint.keep", "the newest so many"}},
    {"resume resume_from_checkpoint resume_from load_checkpoint ckpt_path", {"checkpoint.resume", ""}},
    {"checkpoints checkpointing ckpt save saving", {"checkpoint", ""}},
    {"eval_steps eval_interval val_check_interval eval_every val_interval validate_every eval_freq val_every "
     "evaluation_strategy "
     "eval_strategy",
     {"eval.every", ""}},
    {"eval_iters eval_batches limit_val_batches val_batches max_eval_batches val_iters", {"eval.batches", ""}},
    {"evaluation evaluate", {"eval", ""}},
    {"log_interval logging_steps log_every log_every_n_steps print_every log_steps log_freq every_n_steps",
     {"log.every", ""}},
    {"logging logger logs", {"log", ""}},
    {"wandb mlflow report_to wandb_project wandb_log comet neptune", {"log.tensorboard", kReports}},
    {"logging_dir log_dir tensorboard_dir tb_dir tensorboard", {"log.tensorboard", ""}},
    {"log_file jsonl", {"log.jsonl", ""}},
    {"profiler profile trace", {"log.trace", ""}},
    {"random_seed manual_seed rng_seed", {"seed", ""}},
    {"run_name experiment_name experiment project job_name title", {"name", ""}},
    {"num_workers dataloader_num_workers pin_memory prefetch_factor workers",
     {"", "loading has no settings: the next batch is read while a step runs"}},
    {"compile torch_compile jit", {"", "every job is compiled"}},
    {"flash_attention attn_implementation use_flash_attn flash_attn use_flash_attention",
     {"", "attention never stores its probabilities; there is nothing to turn on"}},
    {"lora peft peft_config lora_config adapters", {"adapter", kAdapter}},
    {"qlora", {"adapter", "LoRA; model.quantize: nf4 holds the frozen weights in four bits"}},
    {"lora_r lora_rank", {"adapter.rank", kAdapter}},
    {"lora_alpha", {"adapter.alpha", kAdapter}},
    {"lora_dropout", {"adapter.dropout", kAdapter}},
    {"target_modules lora_target_modules lora_target_linear lora_layers", {"adapter.targets", kAdapter}},
    {"use_rslora rslora rs_lora", {"adapter.scaled_by_root", kAdapter}},
    {"use_dora dora", {"adapter.magnitude", kAdapter}},
    {"freeze frozen unfrozen_parameters modules_to_save trainable_params requires_grad",
     {"trainable", "globs over the parameters that are trained; the others are frozen"}},
    {"ema ema_decay", {"", "no average of the weights is kept"}},
    {"dpo rl rlhf loss_type preference_optimization", {"train.objective", "auto, or dpo with {kind: dpo, beta: 0.1}"}},
    {"dpo_beta rl_beta pref_beta", {"train.objective.beta", "of dpo"}},
    {"ref_model reference_model ref_model_path",
     {"train.objective", "the reference of dpo is the model as it starts, without its adapter"}},
    {"early_stopping patience", {"", "a job ends after train.steps"}},
    {"label_smoothing label_smoothing_factor", {"", "cross_entropy has no label smoothing"}},
};

// Keys whose meaning depends on the section they stand in; looked up first.
const ValueRow kSectionKeys[] = {
    {"strategy.tensor", "size ranks", {"strategy.tensor.degree", ""}},
    {"strategy.pipeline", "size stages num_stages", {"strategy.pipeline.degree", ""}},
    {"strategy.pipeline",
     "chunks interleave num_chunks vpp virtual_pipeline_size",
     {"strategy.pipeline.virtual_stages", ""}},
    {"strategy.data",
     "stage zero_stage strategy type name mode",
     {"strategy.data.kind", "zero1, zero2, zero3, fsdp or ddp"}},
    {"strategy.data", "degree size", {"", kDataRanks}},
    {"strategy.data", "zero_quantized_weights quantized_weights", {"strategy.data.gather", "int8 or exact"}},
    {"strategy.data", "zero_hpz_partition_size hpz", {"strategy.data.secondary", "node, or a number of ranks"}},
    {"strategy.data", "zero_quantized_gradients quantized_gradients", {"strategy.data.reduce_dtype", "int8 or exact"}},
    {"strategy.data", "fragments num_fragments", {"strategy.data.parts", ""}},
    {"strategy.data.outer", "weight_decay wd betas eps", {"", "the outer optimizer is SGD on the averages"}},
    {"strategy", "zero fsdp ddp deepspeed", {"strategy.data.kind", "zero1, zero2, zero3, fsdp or ddp"}},
    {"strategy", "kind type name", {"strategy.data.kind", "or the name alone, as strategy: fsdp"}},
    {"train.groups[]",
     "params parameters names patterns globs modules",
     {"train.groups[].match", "globs over names of parameters"}},
    {"train.groups[]",
     "lr learning_rate weight_decay wd betas name",
     {"train.groups[].optimizer", "as in optimizer: {name: adamw, lr: 1.0e-4}"}},
    {"train.objective", "type name loss loss_type objective", {"train.objective.kind", "auto or dpo"}},
    {"train.objective",
     "reference ref_model reference_model",
     {"", "the reference is the model as it starts, without its adapter"}},
    {"train.objective", "label_smoothing", {"", "dpo takes every preference as certain"}},
    {"train.optimizer", "type kind optimizer class _target_", {"train.optimizer.name", ""}},
    {"train.optimizer",
     "steps newton_schulz_steps backend_steps num_ns_steps",
     {"train.optimizer.ns_steps", "of muon"}},
    {"train.optimizer", "adjust_lr_fn adjust_lr", {"train.optimizer.adjust", "of muon: original or match_rms_adamw"}},
    {"train.optimizer",
     "adamw adam_lr adamw_lr muon_others",
     {"train.optimizer.others", "the optimizer of what muon does not update"}},
    {"train.lr_schedule", "type kind schedule scheduler lr_scheduler_type", {"train.lr_schedule.name", ""}},
    {"train.batch", "size batch_size total", {"train.batch.global", ""}},
    {"train.batch", "per_device local device", {"train.batch.micro", ""}},
    {"model", "name type file path yaml", {"model.graph", ""}},
    {"model", "checkpoint", {"model.init_from", ""}},
    {"model.with",
     "block_size max_position_embeddings n_ctx n_positions max_seq_len seq_len context_length ctx_len",
     {"model.with.context", ""}},
    {"data", "type kind", {"data.format", ""}},
    {"data", "chat_template conversation_template prompt_template", {"data.template", ""}},
    {"data", "sample_packing pack packed packing_strategy", {"data.packing", "none or documents"}},
    {"data",
     "mask_prompt train_on_inputs train_on_prompt roles_to_train response_only completion_only_loss",
     {"data.train_on", "assistant, last, completion or all"}},
    {"data", "truncation overflow truncate excess_length_strategy", {"data.too_long", ""}},
    {"data", "datasets sources weights probabilities interleave blend", {"data.mix", "[{files: …, weight: 1}, …]"}},
    {"data", "columns column_mapping text_field message_property_mappings", {"data.fields", ""}},
    {"data", "role_mapping", {"data.roles", "{word of the rows: role}"}},
    {"data", "dtype", {"data.token_type", ""}},
    {"data", "label labels label_column y", {"data.target", "of tables"}},
    {"precision", "dtype type mode activations forward", {"precision.compute", ""}},
    {"precision", "weights master master_weights param_dtype", {"precision.params", ""}},
    {"precision", "grads gradients reduce_dtype grad_dtype", {"precision.reduce", ""}},
    {"activation_checkpointing", "type policy enabled granularity", {"activation_checkpointing.mode", ""}},
    {"checkpoint", "path folder directory output", {"checkpoint.dir", ""}},
    {"checkpoint", "interval steps frequency freq save_every", {"checkpoint.every", ""}},
    {"eval", "interval steps frequency freq", {"eval.every", ""}},
    {"eval", "iters num_batches", {"eval.batches", ""}},
    {"eval", "batch_size", {"", "evaluation takes batches of the size of train.batch"}},
    {"log", "interval steps frequency freq", {"log.every", ""}},
    {"log", "file path dir json", {"log.jsonl", ""}},
    {"cluster", "gpus ranks devices", {"cluster.devices_per_node", ""}},
    {"adapter", "r dim", {"adapter.rank", ""}},
    {"adapter", "type name method peft_type", {"adapter.kind", ""}},
    {"adapter", "modules layers", {"adapter.targets", ""}},
    {"adapter", "base base_model", {"model.init_from", "the base is what the model starts from"}},
};

constexpr std::string_view kDtypes = "precision.compute precision.params precision.reduce";
constexpr std::string_view kKinds = "strategy strategy.data.kind";
constexpr std::string_view kNotThere = "that is not supported";
constexpr std::string_view kNoBpe =
    "give the path of its tokenizer.json, or tokenize the text beforehand and read the ids with data.format: tokens";

const ValueRow kValues[] = {
    {"adapter.kind", "dora qlora", {"lora", "DoRA is adapter.magnitude: true, QLoRA model.quantize: nf4"}},
    {"adapter.targets", "all linear all_linear", {"all-linear", ""}},
    {"cluster.device", "gpu gpus nvidia cuda:0 cuda:1", {"cuda", ""}},
    {"cluster.device", "mps tpu rocm amd xpu hip metal", {"", "CPUs and NVIDIA GPUs are supported"}},
    {"cluster.backend", "gloo", {"mpi", "between CPUs"}},
    {"cluster.backend", "ddp fsdp", {"auto", "this says what communicates; `strategy` says how work is spread"}},
    {"cluster.hardware", "h100 h100-80gb", {"h100-sxm", "there are h100-sxm and h100-pcie"}},
    {"cluster.hardware", "a100", {"a100-80gb", "there are a100-80gb and a100-40gb"}},
    {"cluster.hardware", "4090 rtx-4090 rtx_4090 geforce", {"rtx4090", ""}},
    {"cluster.hardware", "gpu cuda cpu local this here none", {"auto", "auto is this machine"}},
    {"cluster.hardware",
     "v100 t4 l4 a10 a10g a6000 rtx3090 3090 h800 a800 mi300x mi250 tpu",
     {"", "no file describes it; write one (schemas/hardware.schema.json)"}},
    {"train.optimizer.name",
     "adamw_torch adamw_hf adamw_fused fused_adamw adamw_torch_fused torch.optim.adamw adamw_apex_fused fusedadam "
     "deepspeedcpuadam",
     {"adamw", ""}},
    {"train.optimizer.name",
     "adamw_8bit adamw_bnb_8bit paged_adamw_8bit adam8bit adamw8bit paged_adamw8bit",
     {"adamw", "with states: int8"}},
    {"train.optimizer.name", "lion_8bit paged_lion_8bit lion8bit", {"lion", "with states: int8"}},
    {"train.optimizer.name",
     "paged_adamw paged_adamw_32bit",
     {"adamw", "states are not paged; states: int8 makes them smaller"}},
    {"train.optimizer.others.name", "muon", {"adamw", "muon takes matrices of blocks, and these are all the others"}},
    {"train.optimizer.name", "momentum nesterov sgd_momentum", {"sgd", "with momentum: 0.9"}},
    {"train.optimizer.name",
     "adafactor lamb lars sophia shampoo soap rmsprop adagrad schedulefree prodigy adamax nadam radam",
     {"", kNotThere}},
    {"train.lr_schedule.name",
     "cosine_with_restarts cosine_annealing cosineannealinglr cosine_with_min_lr cosine_decay cos onecycle onecyclelr "
     "cosine_with_warmup",
     {"cosine", ""}},
    {"train.lr_schedule.name",
     "constant_with_warmup none fixed flat off",
     {"constant", "warmup_steps works with each"}},
    {"train.lr_schedule.name", "linear_with_warmup linear_warmup linear_decay", {"linear", ""}},
    {"train.lr_schedule.name", "trapezoidal warmup_stable_decay trapezoid", {"wsd", ""}},
    {"train.lr_schedule.name",
     "polynomial inverse_sqrt exponential step steplr multistep reduce_on_plateau plateau noam",
     {"", kNotThere}},
    {kDtypes, "bfloat16 bf16-mixed torch.bfloat16 bfloat bf16_mixed", {"bf16", ""}},
    {kDtypes, "float16 fp16 half 16 16-mixed torch.float16 fp16_mixed", {"f16", ""}},
    {kDtypes, "float32 fp32 float single full 32 torch.float32 no false", {"f32", ""}},
    {kDtypes, "mixed amp auto true on", {"bf16", ""}},
    {kDtypes, "tf32 fp8 float8 int8 fp64 float64 double f64 fp4 nf4 e4m3", {"", kNotThere}},
    {"precision.loss_scale", "auto true on", {"dynamic", ""}},
    {"precision.loss_scale", "false off no", {"none", ""}},
    {"data.format", "txt raw string plain utf8 md", {"text", ""}},
    {"data.format", "csv tsv", {"table", ""}},
    {"data.format", "bin token ids tokenized uint16 nanogpt memmap", {"tokens", ""}},
    {"data.format", "mnist idx3 ubyte", {"idx", ""}},
    {"data.format",
     "json jsonl parquet arrow hf huggingface webdataset tfrecord npy images",
     {"",
      "rows of JSONL and Parquet are documents, chat, completion or labelled; text, tokens, table, idx and tensors are "
      "files as "
      "they are"}},
    {"data.format",
     "sharegpt messages conversation conversations chat_template instruct instruction sft",
     {"chat", ""}},
    {"data.format", "alpaca", {"chat", "with fields: {instruction: instruction, input: input, output: output}"}},
    {"data.format", "prompt_completion prompts completions input_output", {"completion", ""}},
    {"data.format",
     "classification sequence_classification text_classification label labels labeled seq_cls",
     {"labelled", ""}},
    {"data.format", "pretrain pretraining document", {"documents", ""}},
    {"data.format", "dpo preference preferences kto orpo", {"", kNotThere}},
    {"data.tokenizer", "byte utf8 utf-8 ascii", {"bytes", ""}},
    {"data.tokenizer", "char character characters", {"chars", ""}},
    {"data.tokenizer",
     "gpt2 gpt-2 bpe tiktoken cl100k_base sentencepiece llama llama3 unigram wordpiece spm hf",
     {"", kNoBpe}},
    {"data.token_type", "uint16 int16 i16 ushort", {"u16", ""}},
    {"data.token_type", "uint32 int32 i32 int64 u64", {"u32", ""}},
    {"data.normalize", "zscore z-score standardize standardscaler true on mean_std", {"standard", ""}},
    {"data.normalize", "minmax min_max", {"", kNotThere}},
    {"data.normalize", "false off no", {"none", ""}},
    {"activation_checkpointing.mode", "true on block blocks yes full_recompute all", {"full", ""}},
    {"activation_checkpointing.mode", "false off no", {"none", ""}},
    {"activation_checkpointing.mode", "selective_recompute op partial", {"selective", ""}},
    {kKinds,
     "dp data data_parallel none single distributed dataparallel distributeddataparallel replicate",
     {"ddp", ""}},
    {kKinds, "zero deepspeed", {"zero1", "zero1, zero2 and zero3 are DeepSpeed's stages"}},
    {kKinds, "zero-1 deepspeed_stage_1 zero_stage_1 stage1", {"zero1", ""}},
    {kKinds, "zero-2 deepspeed_stage_2 zero_stage_2 stage2", {"zero2", ""}},
    {kKinds, "zero-3 deepspeed_stage_3 zero_stage_3 stage3", {"zero3", ""}},
    {kKinds, "fsdp2 fully_shard full_shard fullyshardeddataparallel sdp", {"fsdp", ""}},
    {kKinds, "hsdp hybrid_shard", {"fsdp", "with sharding: hybrid_shard"}},
    {kKinds, "localsgd diloco", {"local_sgd", ""}},
    {"strategy", "tp tensor_parallel megatron", {"tensor", ""}},
    {"strategy", "pp pipeline_parallel pipe", {"pipeline", ""}},
    {"strategy", "3d hybrid best", {"auto", ""}},
    {"strategy.data.sharding", "hsdp", {"hybrid_shard", ""}},
    {"strategy.data.compression", "fp16 f16 half", {"bf16", ""}},
    {"strategy.data.compression", "topk powersgd", {"", "of top_k the fraction that is sent, as {top_k: 0.01}"}},
    {"strategy.pipeline.schedule", "one_f_one_b pipedream pipedream_flush 1f1b_schedule", {"1f1b", ""}},
    {"strategy.pipeline.schedule", "interleaved_1f1b interleaved1f1b vpp", {"interleaved", ""}},
    {"strategy.pipeline.schedule",
     "zero_bubble zb zb1p interleavedzerobubble",
     {"zb_h1", "there are zb_h1, zb_h2 and zb_v"}},
    {"strategy.pipeline.schedule", "zbv zbvzerobubble", {"zb_v", ""}},
    {"strategy.pipeline.schedule", "bfs loopedbfs", {"looped_bfs", ""}},
    {"strategy.pipeline.schedule", "dualpipe dualpipev", {"dualpipe_v", "dualpipe_v holds the weights once"}},
    {"strategy.wrap.policy", "block blocks layer layers transformer_auto_wrap_policy", {"transformer", ""}},
    {"strategy.wrap.policy", "size_based_auto_wrap_policy buckets", {"size", ""}},
    {"checkpoint.format", "single safetensors consolidated", {"full", ""}},
    {"checkpoint.format", "distributed dcp", {"sharded", ""}},
    {"goal", "speed throughput fast fastest latency", {"time", ""}},
    {"goal", "money price cheap cheapest", {"cost", ""}},
    {"goal", "ram vram", {"memory", ""}},
};

const Row kOps[] = {
    {"swish", {"silu", ""}},
    {"softmax log_softmax", {"", "softmax is a part of attention and of cross_entropy"}},
    {"layernorm ln nn.layernorm", {"layer_norm", ""}},
    {"rmsnorm nn.rmsnorm", {"rms_norm", ""}},
    {"batchnorm batchnorm1d batchnorm2d bn nn.batchnorm2d sync_batch_norm syncbatchnorm", {"batch_norm", ""}},
    {"group_norm groupnorm instance_norm", {"", "the norms are layer_norm, rms_norm and batch_norm"}},
    {"dense fc fully_connected proj projection nn.linear", {"linear", ""}},
    {"matmul mm bmm gemm einsum",
     {"", "products of two inputs stand in attention only; linear has a weight of its own"}},
    {"conv conv_2d convolution nn.conv2d", {"conv2d", ""}},
    {"conv_1d nn.conv1d", {"conv1d", ""}},
    {"conv3d conv_transpose", {"", "the convolutions are conv1d and conv2d"}},
    {"maxpool max_pool maxpool2d pool", {"max_pool2d", ""}},
    {"avgpool avg_pool avgpool2d", {"avg_pool2d", ""}},
    {"mean_pool adaptive_avg_pool2d global_avg_pool globalaveragepooling2d",
     {"mean", "of a reshape that makes one dim of height and width"}},
    {"self_attention mha sdpa multihead_attention multi_head_attention scaled_dot_product_attention flash_attention "
     "causal_self_attention gqa",
     {"attention", ""}},
    {"embed token_embedding nn.embedding lookup", {"embedding", ""}},
    {"position_embedding pos_embed pos_emb positional positional_embedding position learned_positions wpe",
     {"positions", ""}},
    {"rope rotary rotary_embedding", {"", "rotary positions are an attribute of attention: rope: {theta: 10000}"}},
    {"ce crossentropy cross_entropy_loss nll_loss softmax_cross_entropy nn.crossentropyloss", {"cross_entropy", ""}},
    {"mse_loss l2 l2_loss mean_squared_error", {"mse", ""}},
    {"bce l1 huber kl_div", {"", "the losses are cross_entropy and mse"}},
    {"sum plus residual addition", {"add", ""}},
    {"multiply prod gate", {"mul", ""}},
    {"view", {"reshape", ""}},
    {"gelu_new gelu_tanh gelu_pytorch_tanh quick_gelu", {"gelu", "with approximate: tanh"}},
    {"swiglu glu geglu mlp feed_forward ffn", {"", "written as linear, silu and mul: models/llama.yaml shows it"}},
    {"leaky_relu elu selu relu6 mish softplus hardswish",
     {"", "the activations are gelu, relu, silu, tanh and sigmoid"}},
    {"cat concatenate", {"concat", ""}},
    {"chunk tensor_split unbind", {"split", "with into: {name: size, …}"}},
    {"permute swapaxes movedim rearrange", {"transpose", "with dims: [0, 2, 1] …"}},
    {"narrow index_select select gather crop", {"slice", "with dim, start and size"}},
    {"average reduce_mean avg", {"mean", ""}},
    {"repeat tile broadcast expand_as cls_token", {"expand", "a second input gives the number of samples"}},
    {"param learnable nn.parameter", {"parameter", ""}},
    {"squeeze unsqueeze", {"reshape", ""}},
    {"stack sub div", {"", "there is no such op"}},
};

std::string folded(std::string_view word) {
  std::string out;
  for (const char c : word) out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// Calls `use` with each of the words in `words`.
template <typename Use>
void each_word(std::string_view words, Use use) {
  while (!words.empty()) {
    const std::size_t space = words.find(' ');
    use(words.substr(0, space));
    words = space == std::string_view::npos ? std::string_view() : words.substr(space + 1);
  }
}

/// Calls `use` with path, word and alias of every row.
template <typename Rows, typename Use>
void each(const Rows& rows, Use use) {
  for (const auto& row : rows) {
    const auto at = [&](std::string_view path) {
      each_word(row.words, [&](std::string_view word) { use(path, word, row.alias); });
    };
    if constexpr (requires { row.paths; })
      each_word(row.paths, at);
    else
      at("");
  }
}

using Index = std::map<std::string, const Alias*, std::less<>>;

/// By "path word".
template <typename Rows>
Index indexed(const Rows& rows) {
  Index index;
  each(rows, [&](std::string_view path, std::string_view word, const Alias& alias) {
    index.emplace(std::string(path) + " " + folded(word), &alias);
  });
  return index;
}

const Alias* find(const Index& index, std::string_view path, std::string_view word) {
  const auto found = index.find(std::string(path) + " " + folded(word));
  return found == index.end() ? nullptr : found->second;
}

}  // namespace

std::string path_of_words(std::string_view path) {
  std::string text;
  bool inside = false;
  for (const char c : path) {
    inside = inside && c != ']';
    if (!inside) text += c;
    inside = inside || c == '[';
  }
  for (const auto& [of, as] : {std::pair("train.groups[].optimizer", "train.optimizer"),
                               std::pair("train.optimizer.others.", "train.optimizer.")})
    if (text.starts_with(of)) text.replace(0, std::string_view(of).size(), as);
  return text;
}

const Alias* alias_of_key(std::string_view given) {
  const std::string path = path_of_words(given);
  static const Index of_sections = indexed(kSectionKeys), anywhere = indexed(kKeys);
  const std::size_t dot = path.rfind('.');
  const std::string_view all = path;
  const std::string_view section = dot == std::string_view::npos ? std::string_view() : all.substr(0, dot);
  const std::string_view word = dot == std::string_view::npos ? all : all.substr(dot + 1);
  const Alias* alias = find(of_sections, section, word);
  return alias != nullptr ? alias : find(anywhere, "", word);
}

const Alias* alias_of_value(std::string_view path, std::string_view word) {
  static const Index index = indexed(kValues);
  const Alias* alias = find(index, path, word);
  return alias != nullptr ? alias : find(index, path_of_words(path), word);
}

const Alias* alias_of_op(std::string_view word) {
  static const Index index = indexed(kOps);
  return find(index, "", word);
}

void each_alias(const std::function<void(AliasOf, std::string_view, std::string_view, const Alias&)>& use) {
  const auto as = [&](AliasOf what) {
    return [&use, what](std::string_view path, std::string_view word, const Alias& alias) {
      use(what, path, word, alias);
    };
  };
  each(kSectionKeys, as(AliasOf::key));
  each(kKeys, as(AliasOf::key));
  each(kValues, as(AliasOf::value));
  each(kOps, as(AliasOf::op));
}

void answer(Diagnostic& mistake, const Alias& alias) {
  mistake.suggestion = alias.ours;
  if (!alias.why.empty()) mistake.message += "; " + std::string(alias.why);
}

}  // namespace trainer
