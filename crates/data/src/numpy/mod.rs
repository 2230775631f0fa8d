//! Arrays in NumPy's formats: `.npy` files, and `.npz` files with several arrays.
//!
//! All dtypes that NumPy and [`HostTensor`] have in common can be read: bool, integers, `float16` to `float64`,
//! `complex64`, `complex128` and text (`str_` as UTF-8, `bytes_`), in either byte order, in row-major or column-major
//! order. Dates, structures and Python objects result in an error, and so does a file that is longer than its header
//! states.
//!
//! | file | what it is |
//! |---|---|
//! | `header.rs` | dtype, order and shape: the Python literal before the elements |
//! | `elements.rs` | the decoding of the elements |

mod elements;
mod header;

use crate::file::{ElementLimit, Input};
use crate::{Compression, Error, Location, Result};
use distribute_files::WholeFile;
use distribute_tensor::{HostTensor, codec};
use header::{Header, MAGIC};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufWriter, Cursor, Read, Seek, Write};
use std::path::Path;

/// Reads the array of a `.npy` file, which may be [compressed](Compression).
///
/// # Errors
///
/// - [`Error::Io`]: the file cannot be read.
/// - [`Error::Damaged`]: the file is not a `.npy` file, is damaged, has a dtype that tensors do not have, or is
///   compressed and larger than the [limit for one element](Location::element_limit). Also if texts take more memory
///   than this limit and, unless the file is at a URL, more than the file has bytes.
/// - [`Error::Feature`]: the file is compressed or at a URL, and the feature for that is not enabled.
///
/// ```
/// use distribute_data::numpy::{read_npy, write_npy};
/// use distribute_tensor::{HostTensor, codec};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("x.npy");
/// let x = HostTensor::new(vec![1i16, 2, 3, 4, 5, 6], [2, 3])?;
/// write_npy(&path, &x)?;
/// assert_eq!(read_npy(&path)?, x);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "numpy.load")]
pub fn read_npy(location: impl Into<Location>) -> Result<HostTensor> {
    let location = location.into();
    let known = |head: &[u8]| Some(head.starts_with(MAGIC));
    let (bytes, packed) = Compression::Auto.unpack(&location, known)?;
    // An uncompressed array of numbers takes no more memory than the file has bytes. A text of one byte takes 25 bytes.
    let limit = location.limit();
    let file = location.open_file()?.map(|file| file.metadata()).transpose();
    let file = file.map_err(|error| location.io_error(error))?.map(|file| file.len());
    let in_memory = location.bytes_in_memory().map_or(0, |bytes| bytes.len() as u64);
    let len = file.unwrap_or(in_memory);
    let of_texts = limit.of(limit.bytes().max(len));
    let mut room = Room { limit: packed.then_some(limit), of_texts, taken: 0 };
    let array = read(&mut Input::new(location.to_string(), bytes), &mut room);
    array.map_err(|error| Compression::Auto.blame(&location, known, error))
}

/// Reads all arrays of a `.npz` file by name. `numpy.savez` and `numpy.savez_compressed` write such files.
///
/// # Errors
///
/// Returns the errors of [`read_npy`], with the location of the array's file in the archive as
/// `file.npz/name.npy`. All arrays together may take as much memory as the file has bytes, or as the [limit for
/// one element](Location::element_limit) if that is more.
///
/// ```no_run
/// let arrays = distribute_data::numpy::read_npz("mnist.npz")?;
/// assert_eq!(arrays["x_train"].dims(), [60000, 28, 28]);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "numpy.load")]
pub fn read_npz(location: impl Into<Location>) -> Result<BTreeMap<String, HostTensor>> {
    any_npz(&location.into(), None)
}

/// Reads the arrays of a `.npz` file with the given names. Other arrays are not read, so they may have any dtype.
///
/// # Errors
///
/// - [`Error::NoColumn`]: there is no array with a requested name.
/// - Any error of [`read_npz`] about these arrays.
///
/// ```no_run
/// let arrays = distribute_data::numpy::read_npz_arrays("mnist.npz", ["x_train"])?;
/// assert_eq!(arrays["x_train"].dims(), [60000, 28, 28]);
/// # Ok::<(), distribute_data::Error>(())
/// ```
pub fn read_npz_arrays<N: Into<String>>(
    location: impl Into<Location>,
    names: impl IntoIterator<Item = N>,
) -> Result<BTreeMap<String, HostTensor>> {
    let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
    any_npz(&location.into(), Some(&names))
}

fn any_npz(location: &Location, names: Option<&BTreeSet<String>>) -> Result<BTreeMap<String, HostTensor>> {
    match location.open_file()? {
        Some(file) => {
            let len = file.metadata().map_err(|e| location.io_error(e))?.len();
            archive(location, file, len, names)
        }
        // The directory of an archive is at its end, so other locations are read completely first.
        None => {
            let mut all = Vec::new();
            location.open()?.read_to_end(&mut all).map_err(|e| location.io_error(e))?;
            let len = all.len() as u64;
            archive(location, Cursor::new(all), len, names)
        }
    }
}

/// Writes a tensor as a `.npy` file, in little-endian byte order and row-major order. The file gets its name only
/// when it is complete.
///
/// # Errors
///
/// - [`Error::Write`]: the file cannot be written.
/// - [`Error::Tensor`]: the tensor is of `bfloat16`, which NumPy does not have, or contains strings, which
///   this function does not write.
#[doc(alias = "numpy.save")]
pub fn write_npy(path: impl AsRef<Path>, tensor: &HostTensor) -> Result<()> {
    let path = path.as_ref();
    let header = Header::of(tensor)?.encode();
    let write = || {
        let mut file = BufWriter::new(WholeFile::create(path)?);
        file.write_all(&header)?;
        codec::chunks(tensor.buffer(), 0..tensor.len()).try_for_each(|bytes| file.write_all(&bytes))?;
        file.into_inner()?.finish()
    };
    write().map_err(|source| Error::Write { path: path.display().to_string(), source })
}

/// The limit on the memory that arrays may take together.
struct Room {
    /// The limit for all arrays together; `None` if there is none.
    limit: Option<ElementLimit>,
    /// The limit for texts if `limit` is `None`. A text takes more memory than it has bytes in the file.
    of_texts: ElementLimit,
    /// The memory in bytes that earlier arrays have taken.
    taken: u64,
}

impl Room {
    /// Counts the memory of an array of numbers. Returns an error if the arrays take too much.
    fn count_numbers(&mut self, bytes: u64) -> Result<(), String> {
        self.taken = self.taken.saturating_add(bytes);
        self.limit.map_or(Ok(()), |limit| limit.check(UNPACKED, self.taken))
    }

    /// Counts the memory of a text of `len` bytes. Returns an error if the arrays take too much.
    fn count_text(&mut self, len: usize) -> Result<(), String> {
        let bytes = size_of::<Vec<u8>>().saturating_add(len);
        self.taken = self.taken.saturating_add(bytes as u64);
        let (limit, what) = self.of_text();
        limit.check(what, self.taken)
    }

    /// Checks the memory for reading one text, which is padded in the file.
    fn check_width(&self, bytes: u64) -> Result<(), String> {
        let (limit, what) = self.of_text();
        limit.check(what, bytes)
    }

    fn of_text(&self) -> (ElementLimit, &'static str) {
        self.limit.map_or((self.of_texts, "its array of texts"), |limit| (limit, UNPACKED))
    }
}

/// The name of all arrays of a compressed file in errors.
const UNPACKED: &str = "what is unpacked of it";

fn read(input: &mut Input<impl Read>, room: &mut Room) -> Result<HostTensor> {
    let header = Header::read(input)?;
    if header.text.is_none() {
        // Sizes that overflow are detected when the elements are read.
        let counted = room.count_numbers(elements::bytes(&header).unwrap_or(0));
        counted.map_err(|what| input.damaged(what))?;
    }
    let tensor = HostTensor::from_buffer(elements::read(&header, input, room)?, header.shape)?;
    input.end()?;
    Ok(tensor)
}

fn archive(
    location: &Location,
    file: impl Read + Seek,
    len: u64,
    names: Option<&BTreeSet<String>>,
) -> Result<BTreeMap<String, HostTensor>> {
    let broken = |e: zip::result::ZipError| match e {
        zip::result::ZipError::Io(e) => location.io_error(e),
        other => location.io_error(std::io::Error::new(std::io::ErrorKind::InvalidData, other)),
    };
    let mut archive = zip::ZipArchive::new(file).map_err(broken)?;
    let (mut arrays, mut known) = (BTreeMap::new(), Vec::new());
    // A directory may name the same bytes many times, so the memory of all arrays is added up.
    let limit = location.limit();
    let limit = limit.of(limit.bytes().max(len));
    let mut room = Room { limit: Some(limit), of_texts: limit, taken: 0 };
    for index in 0..archive.len() {
        let member = archive.by_index(index).map_err(broken)?;
        let name = member.name().map_err(broken)?.into_owned();
        known.push(name.strip_suffix(".npy").unwrap_or(&name).to_string());
        if names.is_some_and(|names| known.last().is_some_and(|name| !names.contains(name))) {
            continue;
        }
        let path = format!("{location}/{name}");
        let mut input = Input::new(path, member);
        match name.strip_suffix(".npy") {
            Some(name) => arrays.insert(name.to_string(), read(&mut input, &mut room)?),
            None => return Err(input.damaged("this is not a .npy file, but a .npz has only these")),
        };
    }
    match names.into_iter().flatten().find(|name| !arrays.contains_key(*name)) {
        None => Ok(arrays),
        Some(name) => Err(Error::NoColumn {
            path: location.to_string(),
            column: format!("'{name}'"),
            known: known.join(", "),
        }),
    }
}
