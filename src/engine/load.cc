#include "engine/load.h"

#include "base/check.h"

namespace tendon {
namespace {

void require_variant(Variant wanted, Variant found, const std::string& where) {
  if (wanted != found) {
    throw_bad_input("{}: a {} model was asked for, but the weights are of a {} model.", where, variant_name(wanted),
                    variant_name(found));
  }
}

}  // namespace

LoadedModel load_model(const std::string& checkpoint, const LoadOptions& options, const LogSink& log,
                       const Progress& progress) {
  LoadedModel loaded;
  if (const std::optional<ModelConfig> synthetic = parse_synthetic(checkpoint)) {
    loaded.config = *synthetic;
    if (options.variant) require_variant(*options.variant, loaded.config.variant, checkpoint);
    CheckpointConfig stated;
    stated.horizon = loaded.config.horizon;
    stated.max_token_len = loaded.config.max_token_len;
    choose_lengths(loaded.config, stated, options.horizon, options.max_token_len);
    loaded.source = std::make_unique<SyntheticSource>(loaded.config, checkpoint, progress, options.making);
  } else {
    std::unique_ptr<Checkpoint> opened = Checkpoint::open(checkpoint, log);
    loaded.checkpoint = opened.get();
    const Variant variant = checkpoint_variant(*opened, options.variant);
    loaded.config = infer_model_config(*opened, opened->config(), variant);
    choose_lengths(loaded.config, opened->config(), options.horizon, options.max_token_len);
    log_info(log, "stored weights: {}", opened->dtype_summary());
    for (const std::string& name : opened->names()) opened->prefetch(name);
    loaded.source = std::move(opened);
  }
  loaded.weights = load_weights(*loaded.source, loaded.config);
  return loaded;
}

}  // namespace tendon
