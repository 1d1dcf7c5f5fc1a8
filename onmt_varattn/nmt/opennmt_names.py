"""Names of OpenNMT-py 2.3.0's options, without dashes, to find a mistyped one before OpenNMT-py is imported.

The import takes seconds, and the version fixes the options. A test compares the names with the parsers.
"""

from onmt_varattn.nmt.settings import TrainSettings, TranslateSettings
from onmt_varattn.utils.settings import Settings, options

_TRANSFORMS = (  # noqa: SIM905
    "insert_ratio mask_length mask_ratio permute_sent_ratio poisson_lambda prior_tokenization "
    "random_ratio replace_length reversible_tokenization rotate_ratio src_onmttok_kwargs src_seq_length "
    "src_subword_alpha src_subword_model src_subword_nbest src_subword_type src_subword_vocab "
    "src_vocab_threshold switchout_temperature tgt_onmttok_kwargs tgt_seq_length tgt_subword_alpha "
    "tgt_subword_model tgt_subword_nbest tgt_subword_type tgt_subword_vocab tgt_vocab_threshold "
    "tokendrop_temperature tokenmask_temperature transforms "
).split()
"""Transforms, in all commands but onmt_translate."""

_VOCABULARY = (  # noqa: SIM905
    "config data dump_samples n_sample num_threads overwrite save_config save_data seed share_vocab "
    "skip_empty_level src_feats_vocab src_vocab tgt_vocab vocab_sample_queue_size "
).split()
"""The other options of onmt_build_vocab."""

_TRAIN = (  # noqa: SIM905
    "aan_useffn accum_count accum_steps adagrad_accumulator_init adam_beta1 adam_beta2 alignment_heads "
    "alignment_layer apex_opt_level attention_dropout average_decay average_every batch_size_multiple "
    "batch_type bidir_edges both_embeddings bridge bridge_extra_node brnn bucket_size cnn_kernel_width "
    "config context_gate copy_attn copy_attn_force copy_attn_type copy_loss_by_seqlength coverage_attn "
    "data data_type dec_layers dec_rnn_size decay_method decoder_type dropout dropout_steps dump_fields "
    "dump_preds dump_transforms early_stopping_criteria embeddings_type enc_layers enc_rnn_size "
    "encoder_type epochs exp exp_host feat_merge feat_vec_exponent feat_vec_size freeze_decoder "
    "freeze_encoder freeze_word_vecs_dec freeze_word_vecs_enc full_context_alignment generator_function "
    "global_attention_function gpu_backend gpu_verbose_level gpuid heads input_feed label_smoothing "
    "lambda_align lambda_coverage layers log_file_level loss_scale master_ip master_port "
    "max_generator_batches max_relative_positions model_dtype model_task model_type n_edge_types n_node "
    "n_sample n_steps normalization optim param_init param_init_glorot pool_factor pos_ffn_activation_fn "
    "position_encoding pre_word_vecs_dec pre_word_vecs_enc queue_size reset_optim reuse_copy_attn "
    "rnn_size rnn_type save_config save_data scoring_debug seed self_attn_type share_decoder_embeddings "
    "share_embeddings share_vocab single_pass skip_empty_level src_embeddings src_feats_vocab "
    "src_ggnn_size src_seq_length_trunc src_vocab src_vocab_size src_word_vec_size "
    "src_words_min_frequency state_dim tgt_embeddings tgt_seq_length_trunc tgt_vocab tgt_vocab_size "
    "tgt_word_vec_size tgt_words_min_frequency train_eval_steps train_from train_metrics train_steps "
    "transformer_ff truncated_decoder update_vocab valid_metrics verbose vocab_size_multiple warmup_steps "
    "word_vec_size world_size "
).split()
"""The other options of onmt_train."""

_TRANSLATE = (  # noqa: SIM905
    "align_debug alpha attn_debug avg_raw_probs ban_unk_token batch_size batch_type beam_size beta "
    "block_ngram_repeat config coverage_penalty data_type dump_beam fp32 gpu ignore_when_blocking int8 "
    "length_penalty log_file log_file_level max_length max_sent_length min_length model n_best output "
    "phrase_table random_sampling_temp random_sampling_topk random_sampling_topp ratio replace_unk "
    "report_time save_config seed shard_size src src_feats stepwise_penalty tgt tgt_prefix verbose "
    "with_score "
).split()
"""The options of onmt_translate."""


def _added(kind: type[Settings]) -> list[str]:
    return [one.name for one in options(kind) if one.meta.help]


NAMES = {
    "train": [*_TRAIN, *_TRANSFORMS, *_added(TrainSettings)],
    "build_vocab": [*_VOCABULARY, *_TRANSFORMS],
    "translate": [*_TRANSLATE, *_added(TranslateSettings)],
    "translate_dynamic": [*_TRANSLATE, *_TRANSFORMS, *_added(TranslateSettings)],
}
"""All options by command, those of the settings included."""
