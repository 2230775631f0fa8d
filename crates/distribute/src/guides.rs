//! The Rust blocks of the guides, compiled and run as tests.

#[doc = include_str!("../../../README.md")]
struct Readme;
#[doc = include_str!("../../../docs/train/getting-started.md")]
struct GettingStarted;
#[doc = include_str!("../../../docs/from-tensorflow/porting.md")]
struct FromTensorFlow;
#[doc = include_str!("../../../docs/from-tensorflow/checkpoints.md")]
struct TensorFlowCheckpoints;
#[doc = include_str!("../../../docs/clusters/deploy.md")]
struct Deploy;
#[doc = include_str!("../../../docs/train/from-candle.md")]
struct FromCandle;
#[cfg(feature = "hub")]
#[doc = include_str!("../../../docs/train/hub.md")]
struct Hub;
#[doc = include_str!("../../../docs/reference/gradients.md")]
struct CandlesGradients;
#[doc = include_str!("../../../docs/train/transformers.md")]
struct Transformers;
#[doc = include_str!("../../../docs/train/input.md")]
struct Input;
#[doc = include_str!("../../../docs/train/optimizers.md")]
struct Optimizers;
#[doc = include_str!("../../../docs/train/mixed-precision.md")]
struct MixedPrecision;
#[doc = include_str!("../../../docs/train/variables.md")]
struct Variables;
#[doc = include_str!("../../../docs/extend/extending.md")]
struct Extending;
#[doc = include_str!("../../../docs/reference/errors.md")]
struct Errors;
#[doc = include_str!("../../../docs/clusters/multi-worker.md")]
struct MultiWorker;
#[doc = include_str!("../../../docs/clusters/slow-links.md")]
struct SlowLinks;
#[doc = include_str!("../../../docs/clusters/disagreement.md")]
struct Disagreement;
#[doc = include_str!("../../../docs/clusters/sharded-state.md")]
struct ShardedState;
#[doc = include_str!("../../../docs/clusters/tables.md")]
struct Tables;
#[doc = include_str!("../../../docs/clusters/recovery.md")]
struct Recovery;
#[doc = include_str!("../../../docs/clusters/elastic.md")]
struct Elastic;
#[doc = include_str!("../../../docs/clusters/clusters.md")]
struct Clusters;
#[doc = include_str!("../../../docs/clusters/coordinator.md")]
struct Coordinator;
#[doc = include_str!("../../../docs/clusters/between-graph.md")]
struct BetweenGraph;
#[doc = include_str!("../../../docs/clusters/sharded-variables.md")]
struct ShardedVariables;
#[doc = include_str!("../../../docs/train/watching.md")]
struct Watching;
#[doc = include_str!("../../../docs/train/devices.md")]
struct Devices;
#[doc = include_str!("../../../docs/train/runner.md")]
struct Runner;
