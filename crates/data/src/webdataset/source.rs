//! The source that reads samples from tar files.

use super::Samples;
use crate::broken::{Broken, SkippedRecords};
use crate::chunk::Chunk;
use crate::file_source::{Format, Reading};
use crate::stage::Stage;
use crate::{Dataset, ElementSpec, Files, Location, Result};
use distribute_tensor::{HostTensor, Leaf, Tree};
use std::collections::BTreeMap;

/// Creates a dataset of the samples in tar files, one tar file after the other. An element is a map that contains, for
/// each file of the sample, its bytes as a scalar string. The key of a file is the part of its name after the first
/// dot, in lower case. The key `__key__` contains the name of the sample. See [`Samples`].
///
/// ```no_run
/// use distribute_data::{Files, webdataset};
/// let samples = webdataset::samples(Files::glob("train-*.tar")?);
/// for sample in &samples {
///     let sample = sample?;
///     println!("{}: {}", sample["__key__"], sample["cls"]);
/// }
/// # Ok::<(), distribute_data::Error>(())
/// ```
pub fn samples(files: impl Into<Files>) -> Dataset<BTreeMap<String, HostTensor>> {
    Dataset::of_files(files.into(), WebDataset { skipped: None })
}

/// Creates a dataset of samples like [`samples`], but skips broken ones, and counts them in `skipped`. A sample is
/// broken in the following cases:
///
/// - Two of its files have the same extension. The extension is the part of the name after the first dot, in lower
///   case.
/// - A file's name is not UTF-8.
/// - The sample is larger than the [limit for one element](Location::element_limit).
///
/// After a damaged header, or a file that alone exceeds the limit, the rest of the tar file is skipped, and counted as
/// one sample. The sample before it is also skipped and counted if it may lack a file.
pub fn samples_skipping(
    files: impl Into<Files>,
    skipped: &SkippedRecords,
) -> Dataset<BTreeMap<String, HostTensor>> {
    Dataset::of_files(files.into(), WebDataset { skipped: Some(skipped.clone()) })
}

struct WebDataset {
    skipped: Option<SkippedRecords>,
}

impl Format for WebDataset {
    fn describe(&self) -> String {
        "WebDataset samples".into()
    }

    /// Returns `None`, because the names of the files are only known from the samples.
    fn spec(&self) -> Option<ElementSpec> {
        None
    }

    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading> {
        let samples = Samples::open(file.clone())?.skip_broken(broken.clone());
        Ok(Reading::Elements(Box::new(SamplesStage(samples))))
    }

    fn skipped(&self) -> Option<&SkippedRecords> {
        self.skipped.as_ref()
    }
}

struct SamplesStage(Samples);

impl Stage for SamplesStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        let bytes = |(name, bytes)| (name, Tree::Leaf(Leaf::Host(HostTensor::scalar::<Vec<u8>>(bytes))));
        let tree = |sample: super::Sample| Tree::Dict(sample.into_iter().map(bytes).collect());
        self.0.next().map(|sample| sample.map(|sample| Chunk::one(tree(sample))))
    }
}
