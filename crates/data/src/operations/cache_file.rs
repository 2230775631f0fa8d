//! The operation that keeps elements in a file. The file contains an identification of the pipeline, a record for
//! each element, and the number of elements.

use super::cache::ends;
use super::cache_contents::{Contents, files};
use super::encoding::{Broken, decode, encode};
use crate::chunk::Chunk;
use crate::file::{Location, Stamp};
use crate::pipeline::{self, Operation, Pipeline, Sharding, WorkerShard};
use crate::stage::Stage;
use crate::{Cardinality, Compression, Dataset, Error, Result, TfRecordReader, TfRecordWriter};
use distribute_tensor::Nest;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

impl<T: Nest> Dataset<T> {
    /// Keeps all elements in a local file, like [`cache`](Dataset::cache) in memory. The first complete pass
    /// writes the file. Later passes read it, even in other processes. The file gets its name only when it is
    /// complete. Workers that read different files, or use a shard hint, have separate cache files, such as
    /// `path.0-of-2`. If a function creates a dataset for each worker, each dataset needs a different path.
    ///
    /// If the cache was written by a pipeline whose operations, parameters of them, lengths, shapes or source files
    /// differ, the pass returns [`Error::Cache`]. Source files are compared by given path, size and modification time,
    /// at the beginning of the process's first pass. Files that no longer exist are ignored. Bytes in memory are
    /// compared by name and size, URLs without the part after a `?`. Parameters include padding, default values and
    /// the skipping of broken records; a cache that was written without skipping is read by a pipeline that skips.
    /// Numbers of threads and of elements that are prepared early are not compared. Changes inside your functions, in
    /// files that your functions read, of the initial state of a [`scan`](Dataset::scan), or of values in memory cannot
    /// be detected. Delete the cache in that case.
    ///
    /// A damaged cache file results in [`Error::Record`] or [`Error::Damaged`] in the pass. A file that cannot be
    /// written results in [`Error::Write`]. A location that is not a local path results in [`Error::Parameter`], and an
    /// infinite dataset in [`Error::Endless`]. Elements must be host tensors, of any dtype, that do not exceed the
    /// [limit for one element](Location::element_limit). Otherwise the pass returns [`Error::Unwritable`].
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// # let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("squares.cache");
    /// let squares = Dataset::range(100).map(|x| x * x).cache_to(&path);
    /// assert_eq!(squares.iter().count(), 100);                // writes the file
    /// assert_eq!(squares.iter().last().unwrap()?, 99 * 99);   // reads it
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.cache")]
    pub fn cache_to(&self, path: impl Into<Location>) -> Self {
        Self::of(CacheFile::new(self.pipeline().clone(), Arc::new(path.into())))
    }
}

#[derive(Clone)]
struct CacheFile {
    input: Pipeline,
    file: Arc<Location>,
    /// The stamps of the input's files, determined only once, because there may be many files.
    stamps: OnceLock<Arc<[Stamp]>>,
}

impl CacheFile {
    fn new(input: Pipeline, file: Arc<Location>) -> Self {
        Self { input, file, stamps: OnceLock::new() }
    }
}

impl Operation for CacheFile {
    fn inputs(&self) -> &[Pipeline] {
        std::slice::from_ref(&self.input)
    }

    fn lean(&self) -> Option<Pipeline> {
        Some(self.input.clone())
    }

    fn over(&self, f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        Some(Arc::new(CacheFile::new(f(&self.input), self.file.clone())))
    }

    fn describe(&self) -> String {
        format!("cache in '{}'", self.file)
    }

    fn identity(&self) -> String {
        "cache".into()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn check(&self) -> Result<()> {
        if self.file.path().is_none() {
            let (operation, parameter, expected) = ("cache_to", "the file", "at a local path");
            let found = format!("'{}'", self.file);
            return Err(Error::Parameter { operation, parameter, found, expected });
        }
        ends("cache_to", &self.input)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn reads_once(&self) -> bool {
        false
    }

    /// Returns the operation with a separate cache file for a worker's shard.
    fn shard(&self, worker: &WorkerShard) -> Option<Pipeline> {
        let (WorkerShard::Files { workers, index } | WorkerShard::Hint { workers, index }) = worker else {
            return None;
        };
        let mut path = self.file.path()?.as_os_str().to_owned();
        path.push(format!(".{index}-of-{workers}"));
        let file = Location::from(PathBuf::from(path)).element_limit(self.file.limit().bytes());
        let input = pipeline::shard(&self.input, worker);
        Some(Arc::new(CacheFile::new(input, Arc::new(file))))
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        let stamps = self.stamps.get_or_init(|| files(&self.input)).clone();
        let (file, contents) = (self.file.clone(), Contents::of(&self.input, stamps));
        if file.path().is_some_and(Path::exists) {
            Box::new(ReadStage { file, contents, reader: None, read: 0, ended: false })
        } else {
            let input = self.input.start(0);
            Box::new(WriteStage { input, file, contents, writer: None, written: 0 })
        }
    }
}

/// A stage that passes on the elements of the input, and writes them to the file: an identification, a record for
/// each element, and the number of elements at the end.
struct WriteStage {
    input: Box<dyn Stage>,
    file: Arc<Location>,
    contents: Contents,
    writer: Option<TfRecordWriter>,
    written: u64,
}

/// The maximum number of elements that are requested from the input at a time.
const MAX_AT_ONCE: usize = 256;

impl WriteStage {
    fn begun(&mut self) -> Result<&mut TfRecordWriter> {
        Ok(match &mut self.writer {
            Some(writer) => writer,
            none => {
                let path = self.file.path().unwrap_or(Path::new(""));
                let contents = self.contents.encode();
                self.file
                    .limit()
                    .check("the list of files", contents.len() as u64)
                    .map_err(|what| Error::Unwritable { path: self.file.to_string(), index: 0, what })?;
                let mut writer = TfRecordWriter::create(path, Compression::None)?;
                writer.write(&contents)?;
                none.insert(writer)
            }
        })
    }

    fn write(&mut self, chunk: Chunk) -> Result<Chunk> {
        let values = chunk.into_values()?;
        for value in &values {
            let limit = self.file.limit();
            let encoded = encode(value).and_then(|bytes| {
                limit.check("the element", bytes.len() as u64)?;
                Ok(bytes)
            });
            let encoded = encoded.map_err(|what| Error::Unwritable {
                path: self.file.to_string(),
                index: self.written,
                what,
            })?;
            self.begun()?.write(&encoded)?;
            self.written += 1;
        }
        Ok(Chunk::Values(values))
    }

    fn finish(&mut self) -> Result<()> {
        let written = self.written;
        self.begun()?.write(&written.to_le_bytes())?;
        self.writer.take().map_or(Ok(()), TfRecordWriter::finish)
    }
}

impl Stage for WriteStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match self.input.next(max.min(MAX_AT_ONCE)) {
            Some(chunk) => Some(chunk.and_then(|chunk| self.write(chunk))),
            None => self.finish().err().map(Err),
        }
    }
}

/// A stage that yields the elements in the cache file.
struct ReadStage {
    file: Arc<Location>,
    /// The expected contents of the file.
    contents: Contents,
    reader: Option<TfRecordReader<Box<dyn BufRead + Send>>>,
    read: u64,
    /// Whether the number of elements, at the end of the file, has already been read.
    ended: bool,
}

impl ReadStage {
    /// Reads the records of up to `max` elements. Returns an empty list at the end, after checking the number of
    /// elements.
    fn records(&mut self, max: usize) -> Result<Vec<Vec<u8>>> {
        if self.ended {
            return Ok(Vec::new());
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let mut reader = TfRecordReader::open(self.file.as_ref(), Compression::None)?;
                let first = reader.read(1)?;
                self.contents.check(first.get(0), &self.file)?;
                none.insert(reader)
            }
        };
        let records = reader.read_at_hand(max.min(MAX_AT_ONCE))?;
        let mut elements: Vec<Vec<u8>> = records.iter().map(<[u8]>::to_vec).collect();
        // Elements begin with a tag byte, so none has the length of a number.
        let end = elements.pop_if(|last| last.len() == size_of::<u64>());
        self.read += elements.len() as u64;
        self.ended = end.is_some();
        match end {
            Some(end) if end != self.read.to_le_bytes() => {
                Err(self.damaged("it does not have the number of elements that it states"))
            }
            None if elements.is_empty() => Err(self.damaged("the number of elements at its end is missing")),
            _ => Ok(elements),
        }
    }

    fn damaged(&self, what: &str) -> Error {
        let path = self.file.to_string();
        let what = format!("after {} elements: {what}; delete it to write it again", self.read);
        Error::Damaged { path, offset: 0, what }
    }

    fn elements(&mut self, max: usize) -> Result<Option<Chunk>> {
        let records = self.records(max)?;
        let decoded = records.iter().map(|record| decode(record, self.file.limit()));
        let values = decoded.collect::<std::result::Result<Vec<_>, _>>().map_err(|broken| match broken {
            Broken::Not => self.damaged("an element is neither a tensor nor a structure of tensors"),
            Broken::TooLarge(what) => self.damaged(&what),
        })?;
        Ok((!values.is_empty()).then_some(Chunk::Values(values)))
    }
}

impl Stage for ReadStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.elements(max).transpose()
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut left = count;
        while left > 0 {
            match self.records(left)?.len() {
                0 => break,
                read => left -= read,
            }
        }
        Ok(count - left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::values;
    use distribute_tensor::{DType, HostTensor, IndexedSlices};
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    type Element = (Option<HostTensor>, Vec<HostTensor>, BTreeMap<String, HostTensor>);

    fn element(i: i64) -> Element {
        let some = (i % 2 == 0).then(|| HostTensor::scalar(i as f32));
        let list = (0..i).map(|k| HostTensor::vector(vec![k; k as usize])).collect();
        (
            some,
            list,
            BTreeMap::from([(
                "text".to_string(),
                HostTensor::vector(vec!["ä".repeat(i as usize).into_bytes()]),
            )]),
        )
    }

    #[test]
    fn the_first_whole_pass_writes_and_others_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let make = move |i| {
            count.fetch_add(1, Ordering::Relaxed);
            element(i)
        };
        let data = Dataset::range(5).map(make).cache_to(&path);
        assert_eq!(data.iter().take(2).count(), 2);
        assert!(!path.exists());
        for _ in 0..3 {
            let all: Vec<_> = data.iter().map(Result::unwrap).collect();
            assert_eq!(all, (0..5).map(element).collect::<Vec<_>>());
        }
        assert_eq!(data.skip(4).iter().next().unwrap().unwrap(), element(4));
        // The end can be read together with the last elements.
        let mut stage = data.pipeline().start(0);
        assert_eq!((stage.next(9).unwrap().unwrap().len(), stage.next(9).is_none()), (5, true));
        assert!(made.load(Ordering::Relaxed) <= 8);
    }

    #[test]
    fn elements_of_another_pipeline_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let cached = |data: Dataset<i64>| data.cache_to(&path).iter().collect::<Result<Vec<_>>>();
        let square = |n| Dataset::range(n).map(|x| x * x);
        assert_eq!(cached(square(3)).unwrap(), [0, 1, 4]);
        assert_eq!(cached(square(3)).unwrap(), [0, 1, 4]);
        // Threads and prefetching change no element.
        assert_eq!(cached(Dataset::range(3).map_parallel(2, |x| x * x).prefetch(1)).unwrap(), [0, 1, 4]);
        for other in
            [square(4), square(0), square(3).shuffle(3, 1), square(3).filter(|_| true), Dataset::range(3)]
        {
            let error = cached(other).unwrap_err();
            assert!(matches!(error, Error::Cache { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("delete it") && text.contains(&path.display().to_string()), "{text}");
        }
        // Lengths and shapes may differ when operations don't.
        let path = folder.path().join("b");
        let items = |n: usize, width| Dataset::from_items(vec![HostTensor::vector(vec![0f32; width]); n]);
        let read = |n, width| items(n, width).cache_to(&path).iter().find_map(Result::err);
        assert!(read(3, 2).is_none() && read(3, 2).is_none());
        let error = read(2, 2).unwrap().to_string();
        assert!(error.contains("3 elements") && error.contains("2 elements"), "{error}");
        let error = read(3, 5).unwrap().to_string();
        assert!(error.contains("float32 [2]") && error.contains("float32 [5]"), "{error}");
        assert!(
            Dataset::range(1)
                .cache_to("s3://bucket/key")
                .check()
                .unwrap_err()
                .to_string()
                .contains("local path")
        );
        // Any other file of records is no cache.
        std::fs::copy(&path, folder.path().join("c")).unwrap();
        let mut writer = TfRecordWriter::create(folder.path().join("c"), Compression::None).unwrap();
        writer.write(b"record").unwrap();
        writer.finish().unwrap();
        let error = items(1, 1).cache_to(folder.path().join("c")).iter().find_map(Result::err).unwrap();
        assert!(error.to_string().contains("not a cache of this version"), "{error}");
    }

    #[test]
    fn elements_of_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
        let read = |cache: &str, names: &[&str]| {
            let files: crate::Files = names.iter().map(|name| at(name)).collect();
            let lines = crate::text_lines(files).cache_to(at(cache));
            lines.iter().collect::<Result<Vec<_>>>().map(|lines| lines.concat())
        };
        let refused = |cache: &str, names: &[&str], why: &str| {
            let error = read(cache, names).unwrap_err();
            assert!(matches!(error, Error::Cache { .. }), "{error}");
            assert!(error.to_string().contains(why) && error.to_string().contains("delete it"), "{error}");
        };
        write("a", "1\n");
        write("b", "2\n");
        assert_eq!(read("cache", &["a"]).unwrap(), "1");
        refused(
            "cache",
            &["b"],
            &format!("it was written from '{}', here is '{}'", at("a").display(), at("b").display()),
        );
        assert_eq!(read("both", &["a", "b"]).unwrap(), "12");
        refused("both", &["b", "a"], "it was written from");
        // Names are elements as well, and changes of their files are detected.
        let names =
            |name: &str| Dataset::list_files(at(name)).cache_to(at("names")).iter().find_map(Result::err);
        assert!(names("a").is_none() && names("a").is_none());
        assert!(matches!(names("b"), Some(Error::Cache { .. })));

        write("a", "17\n");
        refused("cache", &["a"], "had 2 bytes when it was written, and has 3");
        write("a", "7\n");
        let set =
            |time| std::fs::File::options().write(true).open(at("a")).unwrap().set_modified(time).unwrap();
        set(std::time::UNIX_EPOCH + std::time::Duration::from_secs(7));
        refused("cache", &["a"], "is not as old as it was");
        // The source of a cache may be deleted.
        std::fs::remove_file(at("a")).unwrap();
        assert_eq!(read("cache", &["a"]).unwrap(), "1");
    }

    #[test]
    fn every_dtype_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::String) {
            let tensor = HostTensor::new(vec![0u8, 1, 1, 0, 1, 1], [3, 2]).unwrap().cast(dtype).unwrap();
            let data = Dataset::from_items([tensor.clone()]).cache_to(folder.path().join(dtype.name()));
            assert_eq!(data.iter().count(), 1);
            assert_eq!(data.iter().next().unwrap().unwrap(), tensor);
        }
    }

    #[test]
    fn a_damaged_file_is_an_error_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let data = Dataset::range(4).map(|x| (x, x as f32)).cache_to(&path);
        assert_eq!(data.iter().count(), 4);
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(data.iter().any(|element| element.is_err()), "cut at {len}");
        }
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 4;
            std::fs::write(&path, &flipped).unwrap();
            assert!(data.iter().any(|element| element.is_err()), "byte {byte}");
        }
    }

    /// Checks that a path that is not a file is rejected immediately, because opening a named pipe would block forever.
    #[cfg(unix)]
    #[test]
    fn a_path_that_is_no_file_is_refused_at_once() {
        distribute_testing::watched(|| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            for (path, what) in [(path.as_path(), "this is a pipe"), (folder.path(), "Is a directory")] {
                let error = Dataset::range(2).cache_to(path).iter().next().unwrap().unwrap_err();
                let text = error.to_string();
                assert!(text.contains(what) && text.contains(&path.display().to_string()), "{text}");
            }
            // A dangling link is no cache yet: it is replaced.
            let link = folder.path().join("link");
            std::os::unix::fs::symlink(folder.path().join("nowhere"), &link).unwrap();
            let data = Dataset::range(2).cache_to(&link);
            assert_eq!((values(&data), values(&data)), (vec![0, 1], vec![0, 1]));
            assert!(!folder.path().join("nowhere").exists());
        });
    }

    #[test]
    fn a_failed_write_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Dataset::range(2)
            .cache_to(folder.path().join("no/such/folder"))
            .iter()
            .next()
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{error}");
        let slices =
            IndexedSlices::new(HostTensor::vector(vec![1f32]), HostTensor::vector(vec![0i64]), None).unwrap();
        let error = Dataset::from_items([slices])
            .cache_to(folder.path().join("a"))
            .iter()
            .next()
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, Error::Unwritable { index: 0, .. }), "{error}");
        assert_eq!(values(&Dataset::range(1)), [0]);
    }
}
