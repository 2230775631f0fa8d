//! Saving variables to safetensors files, loading them, and their checksum.

use super::Variables;
use crate::checkpoint::{Restored, Select, names_there, some};
use crate::context::require_outside_of_run;
use bytes::Bytes;
use candle_core::safetensors::BufferedSafetensors;
use candle_core::{Device, Tensor};
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_files::WholeFile;
use distribute_tensor::{DType, Leaf};
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Read, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};

impl Variables {
    /// Writes all variables to a safetensors file, by name; running statistics as their mean over the replicas.
    ///
    /// The file is replaced atomically: it is written under another name in the same folder and renamed. If the
    /// process is killed before that, the next save to the same path removes the remains. A link at `path` is
    /// replaced, but not its target.
    ///
    /// With several workers all make this call and only the chief writes. All get its result.
    ///
    /// # Errors
    /// - [`Error::Io`]: the file cannot be written. The error has the path.
    /// - [`Error::WrongContext`]: called inside `run`, other than in `merge_call`.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        const OPERATION: &str = "Variables::save";
        require_outside_of_run(
            OPERATION,
            "each replica would save, while others train: save between runs, or once for all of them in ctx.merge_call",
        )?;
        let (path, at) = (path.as_ref(), Location::caller());
        let io = |source| Error::Io { operation: format!("writing {}", path.display()), source };
        let write = |tensors| {
            let mut file = BufWriter::with_capacity(1 << 18, WholeFile::create(path).map_err(io)?);
            write(&tensors, &mut file).map_err(io)?;
            file.into_inner().map_err(|error| io(error.into_error()))?.finish().map_err(io)
        };
        let call = || Fingerprint::new(Operation::Save, OPERATION, at);
        // The chief writes nothing if a worker cannot read its variables.
        let (tensors, _) = self.0.strategy.agree(OPERATION, call, self.snapshot(), |_| Bytes::new())?;
        let written = || call().part("written by the chief");
        self.0.strategy.on_chief(OPERATION, written, || write(tensors), |()| Bytes::new())?;
        Ok(())
    }

    /// Sets all variables from a safetensors file, by name. Tensors of other names in the file are ignored.
    ///
    /// With several workers all make this call, and each reads a file of the same content. The contents are
    /// compared before anything is changed.
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`Error::Candle`]: the file cannot be read. The error has the path.
    /// - [`Error::InvalidArgument`]: the file is of another kind, lacks a variable or has it in another shape
    ///   or dtype.
    /// - [`Error::WrongContext`]: called inside `run`, other than in `merge_call`.
    #[track_caller]
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        require_outside_of_run("Variables::load", super::WRITE)?;
        self.set_all("load", Location::caller(), self.read_all(path.as_ref()))
    }

    /// Returns the file's tensors for all variables, by name.
    fn read_all(&self, path: &Path) -> Result<BTreeMap<String, Tensor>> {
        let file = open(path)?;
        let names = self.names();
        let missing: Vec<_> = names.iter().filter(|name| file.get(name).is_err()).collect();
        if !missing.is_empty() {
            let missing: Vec<_> = missing.into_iter().cloned().collect();
            let there: Vec<_> = file.tensors().into_iter().map(|(name, _)| name).collect();
            let reason = format!(
                "{} lacks the variables {}; it has {}; names that differ are given by load_some and Select::named",
                path.display(),
                some(&missing, ", "),
                names_there(there)
            );
            return Err(Error::invalid("load", reason));
        }
        let mut values = BTreeMap::new();
        for name in names {
            let value = read(&file, &name, path)?;
            let place = format!("in {} it is", path.display());
            self.find("load", &name)?.require_fit("load", &name, &value, &place)?;
            values.insert(name, value);
        }
        Ok(values)
    }

    /// Sets variables to the tensors that were read, if these are the same on all workers.
    fn set_all(
        &self,
        operation: &'static str,
        at: &'static Location<'static>,
        values: Result<BTreeMap<String, Tensor>>,
    ) -> Result<()> {
        let several = self.0.strategy.world().is_multi_worker();
        let values = values.and_then(|values| {
            let sum = if several { sha256(&values)? } else { String::new() };
            Ok((values, sum))
        });
        let call = || Fingerprint::new(Operation::Restore, operation, at);
        let same = ("what was read", "give all workers the same file");
        let sum = |(_, sum): &(_, String)| format!("of SHA-256 {sum}");
        let (values, _) = self.0.strategy.agree_on(operation, call, values, same, sum)?;
        values.iter().try_for_each(|(name, value)| self.set(name, value))
    }

    /// Sets the variables that `select` selects, from one or several safetensors files, as large models are
    /// often published. Returns the variables that were set, those that were not with the reason, and the
    /// tensors of the files that were not used.
    ///
    /// This is for pretrained weights, most of which have other names, and for a model with a new head;
    /// docs/from-candle.md has a section about them.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::{Linear, VarBuilder, linear};
    /// use distribute::Select;
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("pytorch.safetensors");
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let theirs = strategy.replicate(|vb: VarBuilder| linear(4, 8, vb.pp("encoder.dense")))?;
    /// theirs.variables.save(&path)?;
    ///
    /// let mine = strategy.replicate(|vb: VarBuilder| linear(4, 8, vb.pp("body")))?;
    /// let names = Select::named(|name| Some(name.replace("body", "encoder.dense")));
    /// let loaded = mine.variables.load_some([&path], &names)?;
    /// assert_eq!(loaded.restored["body.weight"], "encoder.dense.weight");
    /// assert!(loaded.kept.is_empty() && loaded.unused.is_empty(), "{loaded}");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`Error::InvalidArgument`]: the files lack selected tensors or have them in another shape, with all of
    ///   their names; nothing would be set; or two files have the same name.
    /// - [`Error::Candle`]: a file cannot be read. The error has the path.
    #[doc(alias = "from_mmaped_safetensors")]
    #[track_caller]
    pub fn load_some<P: AsRef<Path>>(
        &self,
        files: impl IntoIterator<Item = P>,
        select: &Select<'_>,
    ) -> Result<Restored> {
        let paths: Vec<_> = files.into_iter().map(|path| path.as_ref().to_path_buf()).collect();
        let (values, restored) = match self.read_some(&paths, select) {
            Ok((values, restored)) => (Ok(values), restored),
            Err(error) => (Err(error), Restored::default()),
        };
        self.set_all(LOAD_SOME, Location::caller(), values)?;
        Ok(restored)
    }

    /// Returns the files' tensors for the variables that `select` selects, by name, and the report.
    fn read_some(
        &self,
        paths: &[PathBuf],
        select: &Select<'_>,
    ) -> Result<(BTreeMap<String, Tensor>, Restored)> {
        const OPERATION: &str = LOAD_SOME;
        if paths.is_empty() {
            return Err(Error::invalid(OPERATION, "no file was given"));
        }
        let files = paths.iter().map(|path| open(path)).collect::<Result<Vec<_>>>()?;
        let mut there = BTreeMap::new();
        for (file, path) in files.iter().zip(paths) {
            for (name, view) in file.tensors() {
                let dtype = candle_core::DType::try_from(view.dtype()).ok().and_then(host_dtype);
                let found = (file, path, (dtype, view.shape().to_vec()));
                if let Some((_, other, _)) = there.insert(name.clone(), found) {
                    let reason = format!("{} and {} both have {name}", path.display(), other.display());
                    return Err(Error::invalid(OPERATION, reason));
                }
            }
        }
        let from = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
        let found = |name: &str| there.get(name).map(|(_, _, found)| found.clone());
        let restored =
            select.decide(OPERATION, &from, self.described()?, found, || there.keys().cloned().collect())?;
        let restored = restored.finish(OPERATION, &from, there.keys().cloned())?;
        let mut values = BTreeMap::new();
        for (name, source) in &restored.restored {
            if let Some((file, path, _)) = there.get(source) {
                let value = read(file, source, path)?;
                let value = value.to_dtype(self.find(OPERATION, name)?.any()?.dtype())?;
                values.insert(name.clone(), value);
            }
        }
        Ok((values, restored))
    }

    /// Returns SHA-256 over names, dtypes, shapes and bytes of all variables, in hexadecimal digits.
    /// Bit-identical variables have equal checksums.
    ///
    /// # Errors
    /// The errors of reading the variables.
    #[track_caller]
    pub fn sha256(&self) -> Result<String> {
        sha256(&self.snapshot()?)
    }
}

pub(super) fn absorb(hasher: &mut Sha256, name: &str, value: &Tensor) -> Result<()> {
    hasher.update(format!("{name} {:?} {:?}\n", value.dtype(), value.dims()));
    hasher.update(bytes(value)?);
    Ok(())
}

pub(super) fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of [`Variables::load_some`] in errors.
const LOAD_SOME: &str = "load_some";

/// Computes SHA-256 over names, dtypes, shapes and bytes.
fn sha256(tensors: &BTreeMap<String, Tensor>) -> Result<String> {
    let mut hasher = Sha256::new();
    tensors.iter().try_for_each(|(name, value)| absorb(&mut hasher, name, value))?;
    Ok(hex(hasher))
}

/// Opens a safetensors file, in memory.
fn open(path: &Path) -> Result<BufferedSafetensors> {
    let with_path = |error: candle_core::Error| Error::Candle(error.with_path(path));
    let read = || {
        let mut bytes = Vec::new();
        distribute_files::open(path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: io::Error| with_path(error.into()))?;
    let begins = bytes[..bytes.len().min(64)].to_vec();
    BufferedSafetensors::new(bytes).map_err(|error| match foreign(&begins) {
        Some(is) => Error::invalid("load", format!("{} is no safetensors file: it is {is}", path.display())),
        None => with_path(error),
    })
}

/// Returns the kind of a file that is passed instead of a safetensors file, with advice, from its first bytes.
fn foreign(begins: &[u8]) -> Option<&'static str> {
    const PAGE: &str = "a page of the web, such as a server sends in place of a file; look into it";
    const JSON: &str = "JSON; if it is an index, give load_some the files that it names";
    const TORCH: &str = "PyTorch's (a .bin or .pt file); convert it once in Python: \
                         safetensors.torch.save_file(torch.load(path, weights_only=True), \"model.safetensors\")";
    let kinds: [(&[u8], &str); 10] = [
        (b"PK\x03\x04", TORCH),
        (b"\x80\x02", TORCH),
        (b"GGUF", "a GGUF file, of quantized weights; get the model's safetensors files"),
        (b"\x89HDF", "an HDF5 file, such as Keras writes; get the model's safetensors files"),
        (b"version https://git-lfs", "a pointer of Git LFS; get the file itself by git lfs pull"),
        (b"<!", PAGE),
        (b"<html", PAGE),
        (b"{\"", JSON),
        (b"{\n", JSON),
        (b"{ ", JSON),
    ];
    kinds.into_iter().find(|(magic, _)| begins.starts_with(magic)).map(|(_, is)| is)
}

fn read(file: &BufferedSafetensors, name: &str, path: &Path) -> Result<Tensor> {
    file.load(name, &Device::Cpu).map_err(|error| Error::Candle(error.with_path(path)))
}

/// Returns our dtype for candle's, if both exist.
fn host_dtype(dtype: candle_core::DType) -> Option<DType> {
    Leaf::Candle(Tensor::zeros(0, dtype, &Device::Cpu).ok()?).dtype().ok()
}

/// Writes a safetensors file. candle's writer, given a path, replaces the file by one that is not locked.
fn write(tensors: &BTreeMap<String, Tensor>, to: &mut impl Write) -> io::Result<()> {
    let mut tensors: Vec<_> = tensors.iter().collect();
    // The widest dtype first, so that each tensor starts at an address that is aligned for its dtype.
    tensors.sort_by_key(|(_, value)| std::cmp::Reverse(value.dtype().size_in_bytes()));
    let mut end = 0;
    let info = |(name, value): &(&String, &Tensor)| {
        let start = end;
        end += value.elem_count() * value.dtype().size_in_bytes();
        let (dtype, shape) = (value.dtype().into(), value.dims().to_vec());
        (name.to_string(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    let header = Metadata::new(None, tensors.iter().map(info).collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(&header)?;
    tensors.iter().try_for_each(|(_, value)| to.write_all(&bytes(value).map_err(io::Error::other)?))
}

fn bytes(value: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    value.write_bytes(&mut bytes)?;
    Ok(bytes)
}
