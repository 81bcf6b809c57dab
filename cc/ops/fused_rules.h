// The names of the rules that run in a table.
#ifndef TF_EMBED_CC_OPS_FUSED_RULES_H_
#define TF_EMBED_CC_OPS_FUSED_RULES_H_

namespace tf_embed {

// The values of the attribute `rule`; rule_attributes.cc says what they are.
inline constexpr char kFusedRules[] =
    "'sgd', 'momentum', 'adagrad', 'adam', 'adam_amsgrad', 'rmsprop', 'rmsprop_momentum', "
    "'rmsprop_centered', 'rmsprop_centered_momentum', 'ftrl', 'exact_adagrad', 'rowwise_adagrad', "
    "'rowwise_adagrad_global', 'rowwise_adagrad_counter', 'ensemble_rowwise_adagrad', "
    "'ema_rowwise_adagrad', 'row_adam', 'row_adam_counter', 'partial_rowwise_adam', 'lamb', "
    "'partial_rowwise_lamb', 'lars'";

}  // namespace tf_embed

#endif  // TF_EMBED_CC_OPS_FUSED_RULES_H_
