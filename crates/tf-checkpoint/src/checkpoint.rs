//! [`TfCheckpoint`]: an open checkpoint of TensorFlow.

use crate::bundle::{Bundle, Tensor, unsupported};
use crate::damage::{damaged, entry};
use crate::graph::{self, Graph, ObjectPath};
use crate::proto::ObjectGraph;
use crate::{locate, read};
use distribute_checkpoint::{Description, Error, Result};
use distribute_tensor::{DType, HostTensor};
use prost::Message;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A checkpoint of TensorFlow, or the variables of a SavedModel.
///
/// Tensors are read on demand. Clones share the index.
///
/// The files of the checkpoint are not changed. They are opened for each read, so they must not be moved or removed.
///
/// # Names
///
/// A tensor has a name in the checkpoint (its key), and is also found by
///
/// - the path to its object, if `tf.train.Checkpoint` or `tf.saved_model.save` has written it: `model/_kernel` for the
///   key `model/_kernel/.ATTRIBUTES/VARIABLE_VALUE`. An object can have several paths. Its tensor is found by each of
///   them, but the key contains only one. For example, Keras 3 saves the weights of a model that is saved with its
///   optimizer under the keys of the optimizer;
/// - the full name of its variable, such as `sequential/dense/kernel`, if no other variable has this name.
#[doc(alias = "tf.train.load_checkpoint")]
#[doc(alias = "tf.train.load_variable")]
#[doc(alias = "tf.train.list_variables")]
#[derive(Clone, Debug)]
pub struct TfCheckpoint(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bundle: Bundle,
    graph: Graph,
}

impl TfCheckpoint {
    /// Opens the checkpoint at `path`: a prefix such as `run/ckpt-7`, a folder with a file `checkpoint`, which names
    /// the latest checkpoint, or the folder of a SavedModel.
    ///
    /// Reads the complete index and the object graph, and compares their checksums and the sizes of all files. The
    /// memory that is allocated is at most a fixed multiple of the sizes of index and graph, which are limited to 1 GiB
    /// and 256 MiB.
    ///
    /// # Errors
    /// - [`Error::NoCheckpoint`]: there is no such checkpoint at `path`.
    /// - [`Error::Damaged`]: the index, the object graph or the size of a file is wrong, or one of the first two is
    ///   larger than its limit.
    /// - [`Error::Version`]: the files were written on a big-endian machine, or in a later version of TensorFlow's
    ///   format.
    /// - [`Error::Io`]: a file is missing or cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let bundle = Bundle::open(&locate::prefix(path.as_ref())?)?;
        let graph = match bundle.tensors.get(graph::KEY) {
            Some(tensor) if tensor.dtype == Ok(DType::String) && tensor.shape.is_empty() => {
                let at = |reason: String| match tensor.pieces.first() {
                    Some(piece) => damaged(&piece.file, piece.offset, format!("{}: {reason}", graph::KEY)),
                    None => damaged(&bundle.index, 0, reason),
                };
                let size = tensor.pieces.iter().map(|piece| piece.size).fold(0, usize::saturating_add);
                if size > graph::MAX_SIZE {
                    return Err(at(format!("{size} bytes, more than the limit of {}", graph::MAX_SIZE)));
                }
                let text = read::rows(tensor, DType::String, 0..1, &mut |_, _, _| Ok(()))?;
                let bytes: Vec<u8> = text.item()?;
                let graph = ObjectGraph::decode(bytes.as_slice()).map_err(|error| at(error.to_string()))?;
                Graph::new(graph, bytes.len(), |key| bundle.tensors.contains_key(key)).map_err(at)?
            }
            _ => Graph::default(),
        };
        Ok(Self(Arc::new(Inner { bundle, graph })))
    }

    /// Returns the path of the index.
    pub fn path(&self) -> &Path {
        &self.0.bundle.index
    }

    /// Returns the names of all tensors in the checkpoint, sorted, without that of the object graph.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.bundle.tensors.keys().map(String::as_str).filter(|name| *name != graph::KEY)
    }

    /// Returns the tensors of all objects. Objects with fewer components in their path come first, but slots that no
    /// object has as a child come last. The list is empty if `tf.compat.v1.train.Saver` has written the checkpoint,
    /// because it saves no objects.
    pub fn object_paths(&self) -> &[ObjectPath] {
        &self.0.graph.paths
    }

    /// Returns the dtype, the shape, and the rows of each slice of a tensor.
    ///
    /// # Errors
    /// - [`Error::UnknownName`]: there is no tensor named `name`.
    /// - [`Error::Entry`]: several variables have this full name, or the dtype is not supported.
    pub fn describe(&self, name: &str) -> Result<Description> {
        let (_, tensor, dtype) = self.find("describe", name)?;
        let shape = tensor.shape.clone();
        let rows = tensor.pieces.iter().map(|piece| piece.region.rows());
        let slices = if shape.is_empty() { Vec::new() } else { rows.collect() };
        Ok(Description { dtype, shape, slices })
    }

    /// Reads a tensor, and compares its checksums.
    ///
    /// # Errors
    /// - The errors of [`describe`](Self::describe).
    /// - [`Error::Damaged`]: a checksum differs, or the bytes are not valid elements.
    /// - [`Error::Io`]: the file cannot be read.
    pub fn tensor(&self, name: &str) -> Result<HostTensor> {
        let (_, tensor, dtype) = self.find("tensor", name)?;
        read::rows(tensor, dtype, 0..tensor.shape.first().copied().unwrap_or(1), &mut |_, _, _| Ok(()))
    }

    /// Reads a range of rows (indices of axis 0), and no other elements.
    ///
    /// TensorFlow saves one checksum for a tensor or slice. It is compared only if the range has all of its rows.
    /// [`verify`](Self::verify) compares all checksums. Strings have no fixed size, so all strings of a slice are read.
    ///
    /// # Errors
    /// - The errors of [`tensor`](Self::tensor).
    /// - [`Error::Rows`]: the rows are out of range, or the tensor is a scalar.
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<HostTensor> {
        let (_, tensor, dtype) = self.find("rows", name)?;
        let (start, end, count) = (rows.start, rows.end, tensor.shape.first().copied());
        if start > end || count.is_none_or(|count| end > count) {
            return Err(Error::Rows { name: name.to_string(), start, end, rows: count.unwrap_or(0) });
        }
        read::rows(tensor, dtype, rows, &mut |_, _, _| Ok(()))
    }

    /// Compares the checksums of all tensors whose dtype is supported.
    ///
    /// # Errors
    /// - [`Error::Damaged`]: a checksum differs, or the bytes are not valid elements.
    /// - [`Error::Io`]: a file cannot be read.
    pub fn verify(&self) -> Result<()> {
        let tensors = self.0.bundle.tensors.values();
        let supported = tensors.filter_map(|tensor| Some((tensor.dtype.ok()?, tensor)));
        let file = &mut read::LastFile::default();
        supported.into_iter().try_for_each(|(dtype, tensor)| {
            tensor.pieces.iter().try_for_each(|piece| read::verify(piece, dtype, file))
        })
    }

    /// Returns the key of a tensor, the tensor, and its dtype. `operation` is the name of the caller, for errors.
    pub(crate) fn find(&self, operation: &'static str, name: &str) -> Result<(&str, &Tensor, DType)> {
        let Inner { bundle, graph } = &*self.0;
        let plain = graph::key_of(name);
        let has = |key: &str| bundle.tensors.contains_key(key);
        let key = match (has(name), graph.by_path(name), has(&plain), graph.by_name(name)) {
            (true, ..) => name,
            (_, Some(key), ..) => key,
            (_, _, true, _) => &plain,
            (.., [key]) => key,
            (.., []) => name,
            (.., several) => {
                let reason = format!("several variables have this name; use one of the keys {several:?}");
                return Err(entry(operation, name, reason));
            }
        };
        let Some((key, tensor)) = bundle.tensors.get_key_value(key) else {
            let (path, name) = (bundle.index.clone(), name.to_string());
            return Err(Error::UnknownName { path, name, names: self.names().map(String::from).collect() });
        };
        let dtype = tensor.dtype.map_err(|code| {
            let all = DType::ALL.map(DType::name).join(", ");
            let reason = format!("its dtype {} is not supported; supported are {all}", unsupported(code));
            entry(operation, name, reason)
        })?;
        Ok((key, tensor, dtype))
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.0.graph
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        self.0.bundle.tensors.contains_key(key)
    }
}
