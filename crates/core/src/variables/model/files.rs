//! Safetensors files of variables, and the checksum of all variables.

use super::Variables;
use crate::checkpoint::{RestoreFilter, RestoreReport};
use crate::context::require_outside_of_run;
use bytes::Bytes;
use candle_core::safetensors::BufferedSafetensors;
use candle_core::{Device, Tensor};
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_decisions::internal::{first_names, list_names};
use distribute_files::WholeFile;
use distribute_tensor::{DType, Leaf};
use ring::digest::{Context, SHA256};
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Read, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};

impl Variables {
    /// Writes all variables by name to a safetensors file. Running statistics are written as their mean over the
    /// replicas.
    ///
    /// The file is replaced atomically: a new file is written under a temporary name in the same folder and then
    /// renamed. If the process is killed before the rename, the next save to the same path removes the temporary file.
    /// If `path` is a symbolic link, the link itself is replaced, not its target.
    ///
    /// With several workers, all must make this call. Only the chief writes, and all workers get its result.
    ///
    /// # Errors
    /// - [`Error::Io`]: the file cannot be written. The error contains the path.
    /// - [`Error::WrongContext`]: called inside `run` but outside `merge_call`.
    /// - [`Error::NotSupported`]: a variable is a dynamic embedding.
    /// - [`Error::Failed`] of the kind `Usage`: the workers have trained alone since the last [outer
    ///   step](crate::strategy::LocalSteps).
    /// - [`Error::Server`]: a parameter server failed.
    /// - [`Error::Worker`], [`Error::Collective`]: with several workers, one of them fails or does not make the call.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write_file("Variables::save", path.as_ref(), Location::caller(), &|_| true)
    }

    /// Writes the variables that `names` selects by name to a safetensors file, like [`save`](Self::save). All workers
    /// must select the same variables.
    ///
    /// [`load_some`](Self::load_some) reads such a file, and leaves the other variables as they are.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::{Linear, VarBuilder, linear};
    /// use distribute::checkpoint::RestoreFilter;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("head.safetensors");
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let build = |vb: VarBuilder| -> candle_core::Result<[Linear; 2]> {
    ///     Ok([linear(4, 8, vb.pp("body"))?, linear(8, 2, vb.pp("head"))?])
    /// };
    /// let trained = strategy.replicate(build)?;
    /// trained.variables.save_some(&path, |name| name.starts_with("head."))?;
    ///
    /// let other = strategy.replicate(build)?;
    /// let head = RestoreFilter::named(|name| name.starts_with("head.").then(|| name.to_owned()));
    /// other.variables.load_some([&path], &head)?;
    /// let [loaded, saved] = [&other, &trained].map(|model| model.variables.get("head.bias"));
    /// assert_eq!(loaded?.to_vec1::<f32>()?, saved?.to_vec1::<f32>()?);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `names` selects none of the variables. The error lists their names.
    /// - The errors of [`save`](Self::save).
    #[track_caller]
    pub fn save_some(&self, path: impl AsRef<Path>, names: impl Fn(&str) -> bool) -> Result<()> {
        self.write_file("Variables::save_some", path.as_ref(), Location::caller(), &names)
    }

    /// Writes the variables that `names` selects.
    fn write_file(
        &self,
        operation: &'static str,
        path: &Path,
        at: &'static Location<'static>,
        names: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        require_outside_of_run(
            operation,
            "each replica would save, while others train: save between runs, or once for all of them in ctx.merge_call",
        )?;
        let selected = || {
            self.0.strategy.require_agreement(operation)?;
            let tensors = self.snapshot(names)?;
            let all = self.names();
            if tensors.is_empty() && !all.is_empty() {
                let reason = format!("no variable has such a name; the variables are {}", list_names(all));
                return Err(Error::invalid(operation, reason));
            }
            Ok(tensors)
        };
        let io = |source| Error::Io { operation: format!("writing {}", path.display()), source };
        let write = |tensors| {
            let mut file = BufWriter::with_capacity(1 << 18, WholeFile::create(path).map_err(io)?);
            write(&tensors, &mut file).map_err(io)?;
            file.into_inner().map_err(|error| io(error.into_error()))?.finish().map_err(io)
        };
        let call = || Fingerprint::new(Operation::Save, operation, at);
        // The chief writes nothing if a worker cannot read its variables.
        let (tensors, _) = self.0.strategy.exchange_results(operation, call, selected(), |_| Bytes::new())?;
        let written = || call().part("written by the chief");
        self.0.strategy.on_chief(operation, written, |_| write(tensors), |()| Bytes::new())?;
        Ok(())
    }

    /// Sets all variables from a safetensors file, by name. Other tensors in the file are ignored.
    ///
    /// With several workers, all must make this call, and each reads a file with the same content. The
    /// contents are compared before anything is changed.
    ///
    /// # Errors
    /// Nothing has been changed if an error is returned, unless a device or a parameter server failed.
    /// - [`Error::Candle`]: the file cannot be read. The error contains the path.
    /// - [`Error::InvalidArgument`]: the file has a different format, a variable is missing or has a different shape or
    ///   dtype in it, a variable is a dynamic embedding, or the workers' files differ.
    /// - [`Error::WrongContext`]: called inside `run` but outside `merge_call`.
    /// - [`Error::Worker`], [`Error::Collective`]: with several workers, one of them fails or does not make the call.
    #[track_caller]
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        require_outside_of_run("Variables::load", super::WRITE)?;
        self.set_all("load", Location::caller(), self.read_all(path.as_ref()))
    }

    /// Reads the tensors for all variables from the file, by name.
    fn read_all(&self, path: &Path) -> Result<BTreeMap<String, Tensor>> {
        let file = open(path)?;
        let names = self.names();
        let is_dynamic = |name: &&String| self.variable(name).is_ok_and(|variable| variable.is_dynamic());
        if let Some(name) = names.iter().find(is_dynamic) {
            let reason = format!(
                "{name} is a table of ids, which is not in safetensors files; set the others by load_some, or restore a \
                 Checkpoint"
            );
            return Err(Error::invalid("Variables::load", reason));
        }
        let missing: Vec<_> = names.iter().filter(|name| file.get(name).is_err()).collect();
        if !missing.is_empty() {
            let missing: Vec<_> = missing.into_iter().cloned().collect();
            let there: Vec<_> = file.tensors().into_iter().map(|(name, _)| name).collect();
            let reason = format!(
                "{} lacks the variables {}; it has {}; use load_some and RestoreFilter::named for names that differ",
                path.display(),
                first_names(&missing, ", "),
                list_names(there)
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

    /// Sets the variables to the tensors that were read, if all workers have read the same tensors.
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
        let (values, _) = self.0.strategy.require_equal(operation, call, values, same, sum)?;
        values.iter().try_for_each(|(name, value)| self.set(name, value))
    }

    /// Sets the variables that `select` selects from one or more safetensors files. Large models are often published in
    /// several files. The report lists the variables that were set, the variables that were not set, each with the
    /// reason, and the tensors in the files that were not used.
    ///
    /// Use this for pretrained weights, which often have different names, and for models with a new head; see
    /// docs/train/from-candle.md.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::{Linear, VarBuilder, linear};
    /// use distribute::checkpoint::RestoreFilter;
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("pytorch.safetensors");
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let theirs = strategy.replicate(|vb: VarBuilder| linear(4, 8, vb.pp("encoder.dense")))?;
    /// theirs.variables.save(&path)?;
    ///
    /// let mine = strategy.replicate(|vb: VarBuilder| linear(4, 8, vb.pp("body")))?;
    /// let names = RestoreFilter::named(|name| Some(name.replace("body", "encoder.dense")));
    /// let loaded = mine.variables.load_some([&path], &names)?;
    /// assert_eq!(loaded.restored["body.weight"], "encoder.dense.weight");
    /// assert!(loaded.unrestored.is_empty() && loaded.unused.is_empty(), "{loaded}");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing has been changed if an error is returned, unless a device or a parameter server failed.
    /// - [`Error::InvalidArgument`]: selected tensors are missing in the files or do not match (the error lists them),
    ///   no tensor would be set, there is no file, two files contain the same name, or the workers' files differ.
    /// - [`Error::Candle`]: a file cannot be read. The error contains the path.
    /// - [`Error::WrongContext`]: called inside `run` but outside `merge_call`.
    /// - [`Error::Worker`], [`Error::Collective`]: with several workers, one of them fails or does not make the call.
    #[doc(alias = "from_mmaped_safetensors")]
    #[track_caller]
    pub fn load_some<P: AsRef<Path>>(
        &self,
        files: impl IntoIterator<Item = P>,
        select: &RestoreFilter<'_>,
    ) -> Result<RestoreReport> {
        require_outside_of_run(LOAD_SOME, super::WRITE)?;
        let paths: Vec<_> = files.into_iter().map(|path| path.as_ref().to_path_buf()).collect();
        let (values, restored) = match self.read_some(&paths, select) {
            Ok((values, restored)) => (Ok(values), restored),
            Err(error) => (Err(error), RestoreReport::default()),
        };
        self.set_all(LOAD_SOME, Location::caller(), values)?;
        Ok(restored)
    }

    /// Reads the tensors for the variables that `select` selects, by name. Also returns the report.
    fn read_some(
        &self,
        paths: &[PathBuf],
        select: &RestoreFilter<'_>,
    ) -> Result<(BTreeMap<String, Tensor>, RestoreReport)> {
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

    /// Returns the SHA-256 of the names, dtypes, shapes and bytes of all variables, as hexadecimal digits.
    /// Bit-identical variables have equal checksums. If the model has running statistics, all workers must make this
    /// call.
    ///
    /// # Errors
    /// Returns the errors of reading the variables.
    #[track_caller]
    pub fn sha256(&self) -> Result<String> {
        sha256(&self.snapshot(&|_| true)?)
    }
}

pub(super) fn hash_tensor(hasher: &mut Context, name: &str, value: &Tensor) -> Result<()> {
    hasher.update(format!("{name} {:?} {:?}\n", value.dtype(), value.dims()).as_bytes());
    hasher.update(&bytes(value)?);
    Ok(())
}

pub(super) fn hex(hasher: Context) -> String {
    hasher.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of [`Variables::load_some`] in error messages.
const LOAD_SOME: &str = "load_some";

/// Computes the SHA-256 of names, dtypes, shapes and bytes.
fn sha256(tensors: &BTreeMap<String, Tensor>) -> Result<String> {
    let mut hasher = Context::new(&SHA256);
    tensors.iter().try_for_each(|(name, value)| hash_tensor(&mut hasher, name, value))?;
    Ok(hex(hasher))
}

/// Reads a safetensors file into memory and parses it.
fn open(path: &Path) -> Result<BufferedSafetensors> {
    let with_path = |error: candle_core::Error| Error::Candle(error.with_path(path));
    let read = || {
        let mut bytes = Vec::new();
        distribute_files::open(path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: io::Error| with_path(error.into()))?;
    let begins = bytes[..bytes.len().min(64)].to_vec();
    BufferedSafetensors::new(bytes).map_err(|error| match other_format(&begins) {
        Some(is) => {
            Error::invalid("load", format!("{} is not a safetensors file: it is {is}", path.display()))
        }
        None => with_path(error),
    })
}

/// Recognizes the format of a file that is not a safetensors file, by the file's first bytes. Returns the format, with
/// advice; `None` if the format is unknown.
fn other_format(begins: &[u8]) -> Option<&'static str> {
    const PAGE: &str = "a web page, such as a server sends instead of a file; open it to see";
    const JSON: &str = "JSON; if it is an index, pass the files that it lists to load_some";
    const TORCH: &str = "PyTorch's (a .bin or .pt file); convert it once in Python: \
                         safetensors.torch.save_file(torch.load(path, weights_only=True), \"model.safetensors\")";
    let kinds: [(&[u8], &str); 10] = [
        (b"PK\x03\x04", TORCH),
        (b"\x80\x02", TORCH),
        (b"GGUF", "a GGUF file with quantized weights; use the model's safetensors files"),
        (b"\x89HDF", "an HDF5 file, such as Keras writes; use the model's safetensors files"),
        (b"version https://git-lfs", "a Git LFS pointer; run git lfs pull to get the file"),
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

/// Returns the [`DType`] that corresponds to one of candle's, if there is one.
fn host_dtype(dtype: candle_core::DType) -> Option<DType> {
    Leaf::Candle(Tensor::zeros(0, dtype, &Device::Cpu).ok()?).dtype().ok()
}

/// Writes tensors in the safetensors format. candle's writer is not used, because it takes a path and would replace the
/// locked file.
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
