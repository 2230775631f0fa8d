//! [`Strategy`], the constructors of strategies, and the interface for implementing your own.

#[doc(inline)]
pub use distribute_base::{DeviceKind, DeviceName};
#[doc(alias = "tf.distribute.experimental.ValueContext")]
#[doc(inline)]
pub use distribute_core::ValueContext;
#[doc(alias = "tf.distribute.HierarchicalCopyAllReduce")]
#[doc(inline)]
pub use distribute_core::strategy::HierarchicalCopyAllReduce;
#[doc(alias = "tf.distribute.NcclAllReduce")]
#[doc(inline)]
pub use distribute_core::strategy::NcclAllReduce;
#[doc(alias = "tf.distribute.ReductionToOneDevice")]
#[doc(inline)]
pub use distribute_core::strategy::ReductionToOneDevice;
#[doc(inline)]
pub use distribute_core::strategy::{
    Checksums, CommunicationImplementation, CommunicationOptions, Compression, CrossDeviceOps, Group,
    IndependentWorker, Links, LocalSteps, Outer, Reduction, Replicas, Straggler, StragglerCause,
    StragglerPolicy, Strategy, StrategyExtended, Threads, VariablePlacement, Wire, WorkerTimes,
};
#[doc(inline)]
pub use distribute_core::{Contained, Destinations};
#[doc(inline)]
pub use distribute_ps_client::RowFormat;
#[doc(alias = "tf.distribute.experimental.CentralStorageStrategy")]
#[doc(inline)]
pub use distribute_strategies::CentralStorageStrategy;
#[doc(alias = "tf.distribute.MirroredStrategy")]
#[doc(inline)]
pub use distribute_strategies::MirroredStrategy;
#[doc(alias = "tf.distribute.MultiWorkerMirroredStrategy")]
#[doc(alias = "tf.distribute.experimental.MultiWorkerMirroredStrategy")]
#[doc(alias = "CollectiveAllReduceStrategy")]
#[doc(inline)]
pub use distribute_strategies::MultiWorkerMirroredStrategy;
#[doc(alias = "tf.distribute.OneDeviceStrategy")]
#[doc(inline)]
pub use distribute_strategies::OneDeviceStrategy;
#[doc(inline)]
pub use distribute_strategies::{
    HostedWeights, MirroredStrategyBuilder, MultiWorkerMirroredStrategyBuilder, TableHosts, TableOptions,
};
