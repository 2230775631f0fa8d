//! A checkpoint in memory, for transferring state to another process.

use crate::index::Index;
use crate::shard::{self, Shard};
use crate::{Error, Reader, Result, Writer};
use bytes::Bytes;
use std::io::Cursor;
use std::path::Path;

/// The name of the image's only file. It is the same as in a folder with one file.
const FILE: &str = "shard-00001-of-00001.safetensors";

impl Writer {
    /// Returns the checkpoint as bytes that can be sent to another process.
    ///
    /// The image contains the file and the index that [`save`](Writer::save) would write with one shard, followed by
    /// the length of the index as 8 bytes, little-endian.
    ///
    /// ```
    /// # use distribute_checkpoint::{Reader, Writer};
    /// # use distribute_tensor::HostTensor;
    /// let mut writer = Writer::new();
    /// writer.insert("weight", HostTensor::vector(vec![1f32, 2.]))?;
    /// writer.metadata("step", 7);
    /// let image = writer.image()?;
    /// let reader = Reader::from_image(image.into(), "worker 0")?;
    /// assert_eq!(reader.tensor("weight")?.to_vec::<f32>()?, [1., 2.]);
    /// assert_eq!(reader.number("step"), Some(7.));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Entry`]: a tensor has missing rows.
    /// - [`Error::Index`]: metadata is nested too deeply.
    /// - [`Error::Source`]: rows of a tensor cannot be read or copied.
    /// - [`Error::InvalidArgument`]: the names and shapes of the tensors take more than 100 MB.
    pub fn image(&self) -> Result<Vec<u8>> {
        let path = Path::new("memory");
        let mut layout = self.layout(1)?;
        let (mut image, mut entries) = (Vec::new(), Vec::new());
        for tensors in std::mem::take(&mut layout.files) {
            entries.push(shard::write_to(&mut image, path, FILE.to_owned(), tensors, &mut || Ok(()))?);
        }
        let index =
            layout.index(entries).to_text().map_err(|error| Error::io("writing", path)(error.into()))?;
        // Metadata may be nested too deeply for a reader.
        Index::from_bytes(path, index.as_bytes())?;
        image.extend_from_slice(index.as_bytes());
        image.extend_from_slice(&(index.len() as u64).to_le_bytes());
        Ok(image)
    }
}

impl Reader {
    /// Opens the checkpoint in an [image](Writer::image). `from` describes its source: error messages contain it,
    /// and [`path`](Reader::path) returns it.
    ///
    /// # Errors
    /// - [`Error::Damaged`], [`Error::Version`], [`Error::Index`]: as for [`open`](Reader::open).
    pub fn from_image(image: Bytes, from: &str) -> Result<Self> {
        let path = Path::new(from);
        let damaged = || {
            let reason = "there is no index at its end".to_owned();
            Error::Damaged { path: path.to_path_buf(), offset: image.len() as u64, reason }
        };
        let (front, length) = image.split_last_chunk().ok_or_else(damaged)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok();
        let end = length.and_then(|length| front.len().checked_sub(length)).ok_or_else(damaged)?;
        let content = image.slice(..end);
        let mut reader = Reader::of(path, path, &front[end..], &mut |entry| {
            let found = content.len() as u64;
            Shard::of(Box::new(Cursor::new(content.clone())), found, path.to_path_buf(), entry)
        })?;
        reader.is_image = true;
        Ok(reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_tensor::HostTensor;
    use proptest::prelude::*;

    fn image() -> Vec<u8> {
        let mut writer = Writer::new();
        writer.insert("a", HostTensor::vector((0..1000).collect::<Vec<i64>>())).unwrap();
        writer.insert("b", HostTensor::vector(vec![b"text".to_vec()])).unwrap();
        writer.metadata("step", 3);
        writer.image().unwrap()
    }

    #[test]
    fn nothing_is_an_image_too() {
        let reader = Reader::from_image(Writer::new().image().unwrap().into(), "worker 0").unwrap();
        assert_eq!(reader.names().count(), 0);
    }

    #[test]
    fn metadata_that_no_reader_can_read_is_refused() {
        let nested = (0..200).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
        let mut writer = Writer::new();
        writer.metadata("deep", nested);
        assert!(matches!(writer.image(), Err(Error::Index { .. })));
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_an_error_that_names_their_source(at in 0usize..8000, bit in 0u8..8, cut in any::<bool>()) {
            let whole = image();
            let at = at % whole.len();
            let mut damaged = whole.clone();
            if cut {
                damaged.truncate(at);
            } else {
                damaged[at] ^= 1 << bit;
            }
            let read = Reader::from_image(damaged.into(), "worker 7").and_then(|reader| reader.verify());
            let error = read.unwrap_err().to_string();
            prop_assert!(error.contains("worker 7"), "{error}");
        }
    }
}
