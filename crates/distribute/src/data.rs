//! Datasets: sources, transformations, file formats, and the split of batches over replicas.

#[doc(alias = "tf.data.Dataset")]
#[doc(inline)]
pub use distribute_data::Dataset;
#[doc(alias = "record_defaults")]
#[doc(alias = "column_defaults")]
#[doc(inline)]
pub use distribute_data::DefaultValue;
#[doc(alias = "tf.data.Dataset.element_spec")]
#[doc(inline)]
pub use distribute_data::ElementSpec;
#[doc(alias = "tf.train.Example")]
#[doc(inline)]
pub use distribute_data::Example;
#[doc(alias = "tf.distribute.InputContext")]
#[doc(inline)]
pub use distribute_data::InputContext;
#[doc(alias = "tf.data.Dataset.ignore_errors")]
#[doc(alias = "tf.data.experimental.ignore_errors")]
#[doc(alias = "ignore_errors")]
#[doc(inline)]
pub use distribute_data::SkippedRecords;
#[doc(alias = "tf.TensorSpec")]
#[doc(inline)]
pub use distribute_data::TensorSpec;
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
#[doc(inline)]
pub use distribute_data::TfRecord;
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
#[doc(inline)]
pub use distribute_data::TfRecordReader;
#[doc(alias = "tf.io.TFRecordWriter")]
#[doc(inline)]
pub use distribute_data::TfRecordWriter;
#[doc(alias = "tf.data.TextLineDataset")]
#[doc(alias = "TextLineDataset")]
#[doc(inline)]
pub use distribute_data::text_lines;
#[doc(inline)]
pub use distribute_data::*;
