//! The source that yields the names of files.

use crate::chunk::Chunk;
use crate::file_source::{names, order, own};
use crate::hand::{FileOrder, HandSlot};
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, WorkerShard};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Error, Files, Location, Result, TensorSpec};
use distribute_tensor::{DType, HostTensor, Leaf, Tree};
use std::sync::Arc;

impl Dataset<String> {
    /// Creates a dataset of the names of files. The names can be shuffled, and the files can be read by the function of
    /// an [`interleave`](Dataset::interleave). A name is the complete path or URL as it was given, including secrets in
    /// a URL. The dataset can be sharded by files, like a source that reads them.
    #[doc(alias = "tf.data.Dataset.list_files")]
    pub fn list_files(files: impl Into<Files>) -> Self {
        Self::of(FileNames { files: Arc::new(files.into()), dealt: None })
    }
}

struct FileNames {
    files: Arc<Files>,
    /// The slot with the files that this worker is dealt; `None` if all files are named, in order.
    dealt: Option<HandSlot>,
}

impl Operation for FileNames {
    fn describe(&self) -> String {
        format!("names of {}", names(&self.files))
    }

    fn identity(&self) -> String {
        format!("names of {} files", self.files.len())
    }

    fn files(&self) -> Option<&Files> {
        Some(&self.files)
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.files.len())
    }

    fn batching(&self) -> Batching {
        Batching::Elements
    }

    fn spec(&self, _look: Look) -> Option<ElementSpec> {
        Some(Tree::Leaf(TensorSpec::scalar(DType::String)))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Files(self.files.len())
    }

    fn shard(&self, worker: &WorkerShard) -> Option<Pipeline> {
        let (files, dealt) = own(&self.files, worker)?;
        Some(Arc::new(FileNames { files, dealt }))
    }

    fn names_files(&self) -> bool {
        true
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        let order = order(&self.files, self.dealt.as_ref());
        let (order, failed) =
            order.map_or_else(|error| (FileOrder::none(), Some(error)), |order| (order, None));
        Box::new(NamesStage { files: self.files.clone(), order, failed })
    }
}

struct NamesStage {
    files: Arc<Files>,
    order: FileOrder,
    /// The error that ends the pass.
    failed: Option<Error>,
}

impl Stage for NamesStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let name = |file: &Location| Tree::Leaf(Leaf::Host(HostTensor::scalar(file.as_given().to_vec())));
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let mut names = Vec::new();
        while names.len() < max
            && let Some(index) = self.order.next(names.is_empty())
            && let Some(file) = self.files.get(index)
        {
            names.push(name(file));
        }
        (!names.is_empty()).then(|| Ok(Chunk::Values(names)))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Dataset, Files, Location};

    #[test]
    fn names_of_files_are_elements() {
        let files = || Files::from(["a", "b", "c"].map(|name| Location::bytes(name, "")));
        let read = |data: Dataset<String>| data.iter().map(Result::unwrap).collect::<String>();
        assert_eq!(read(Dataset::list_files(files())), "abc");
        assert_eq!(read(Dataset::list_files(files()).skip(1)), "bc");
    }
}
