//! Arrays as numpy saves them: `.npy` files, and `.npz` files of several.
//!
//! All dtypes that numpy and [`HostTensor`] both have: bool, integers, `float16` to `float64`, `complex64` and
//! `complex128`, in either byte order, row by row or column by column. Strings, dates, structures and Python objects
//! are refused, and so is a file that is longer than its header says.
//!
//! | file | what it is |
//! |---|---|
//! | `header.rs` | dtype, order and shape: the Python literal before the elements, read and written |
//! | `elements.rs` | bytes to elements and back |

mod elements;
mod header;

use crate::file::Input;
use crate::{Compression, Error, Location, Result};
use distribute_files::WholeFile;
use distribute_tensor::{HostTensor, codec};
use header::{Header, MAGIC};
use std::collections::BTreeMap;
use std::io::{BufWriter, Cursor, Read, Seek, Write};
use std::path::Path;

/// Reads the array of a `.npy` file, which may be compressed with gzip or zlib.
///
/// # Errors
///
/// [`Error::Io`] if the file cannot be read, [`Error::Damaged`] if it is no such file or one of a dtype that tensors
/// don't have.
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
    let bytes = Compression::Auto.open_known(&location, |head| head.starts_with(MAGIC))?;
    read(&mut Input::new(location.to_string(), bytes))
}

/// Reads all arrays of a `.npz` file, as `numpy.savez` and `numpy.savez_compressed` write them, by name.
///
/// # Errors
///
/// As [`read_npy`]; errors name the array's file within the archive as `file.npz/name.npy`.
///
/// ```no_run
/// let arrays = distribute_data::numpy::read_npz("mnist.npz")?;
/// assert_eq!(arrays["x_train"].dims(), [60000, 28, 28]);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "numpy.load")]
pub fn read_npz(location: impl Into<Location>) -> Result<BTreeMap<String, HostTensor>> {
    let location = location.into();
    match location.path() {
        Some(path) => archive(&location, distribute_files::open(path).map_err(|e| location.io_error(e))?),
        // The directory of an archive is at its end, so what has no end yet is read first.
        None => {
            let mut all = Vec::new();
            location.open()?.read_to_end(&mut all).map_err(|e| location.io_error(e))?;
            archive(&location, Cursor::new(all))
        }
    }
}

/// Writes a tensor as a `.npy` file, little-endian and row by row. The file has its name when it is whole.
///
/// # Errors
///
/// [`Error::Write`] if the file cannot be written, an error of the tensor crate for `bfloat16` and strings, which numpy
/// doesn't have.
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

fn read(input: &mut Input<impl Read>) -> Result<HostTensor> {
    let header = Header::read(input)?;
    let tensor = HostTensor::from_buffer(elements::read(&header, input)?, header.shape)?;
    input.end()?;
    Ok(tensor)
}

fn archive(location: &Location, file: impl Read + Seek) -> Result<BTreeMap<String, HostTensor>> {
    let broken = |e: zip::result::ZipError| match e {
        zip::result::ZipError::Io(e) => location.io_error(e),
        other => location.io_error(std::io::Error::new(std::io::ErrorKind::InvalidData, other)),
    };
    let mut archive = zip::ZipArchive::new(file).map_err(broken)?;
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let member = archive.by_index(index).map_err(broken)?;
        let name = member.name().map_err(broken)?.into_owned();
        let path = format!("{location}/{name}");
        let mut input = Input::new(path, member);
        match name.strip_suffix(".npy") {
            Some(name) => arrays.insert(name.to_string(), read(&mut input)?),
            None => return Err(input.damaged("this is no .npy file, and others have no place in a .npz")),
        };
    }
    Ok(arrays)
}
