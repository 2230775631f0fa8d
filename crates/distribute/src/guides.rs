//! The Rust blocks of the guides, compiled and run as tests.

#[doc = include_str!("../../../README.md")]
struct Readme;
#[doc = include_str!("../../../docs/from-candle.md")]
struct FromCandle;
#[doc = include_str!("../../../docs/transformers.md")]
struct Transformers;
#[doc = include_str!("../../../docs/input.md")]
struct Input;
#[doc = include_str!("../../../docs/optimizers.md")]
struct Optimizers;
#[doc = include_str!("../../../docs/variables.md")]
struct Variables;
#[doc = include_str!("../../../docs/extending.md")]
struct Extending;
#[doc = include_str!("../../../docs/errors.md")]
struct Errors;
#[doc = include_str!("../../../docs/multi-worker.md")]
struct MultiWorker;
#[doc = include_str!("../../../docs/recovery.md")]
struct Recovery;
#[doc = include_str!("../../../docs/elastic.md")]
struct Elastic;
#[doc = include_str!("../../../docs/clusters.md")]
struct Clusters;
#[doc = include_str!("../../../docs/coordinator.md")]
struct Coordinator;
#[doc = include_str!("../../../docs/between-graph.md")]
struct BetweenGraph;
#[doc = include_str!("../../../docs/sharded-variables.md")]
struct ShardedVariables;
#[doc = include_str!("../../../docs/watching.md")]
struct Watching;
#[doc = include_str!("../../../docs/devices.md")]
struct Devices;
#[doc = include_str!("../../../docs/runner.md")]
struct Runner;
