//! The stage that reads files in one pass. Several sections are parsed at the same time.

use super::format::{Format, ParsedSection, Reading, Work};
use crate::broken::Broken;
use crate::chunk::Chunk;
use crate::hand::FileOrder;
use crate::stage::Stage;
use crate::worker_pool::WorkerPool;
use crate::{Error, Files, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum total size in bytes of all sections in progress. A single section may be larger.
const MAX_BYTES: usize = 64 << 20;

/// A stage that yields the elements of files, one file after the other and in the order within them. It may use
/// several threads.
pub(crate) struct FilesStage {
    files: Arc<Files>,
    format: Arc<dyn Format>,
    order: FileOrder,
    /// The index of the file that is being read.
    reading: usize,
    current: Option<Reading>,
    /// The elements that have been parsed but not returned yet.
    parsed: ParsedSection,
    /// The index of the file that contains the elements in `parsed`.
    made_of: usize,
    /// The parsing threads; `None` until they are started. The first section is parsed without them, so that a
    /// small file needs none.
    pool: Option<WorkerPool<Work, ParsedSection>>,
    /// The index of the file and the size in bytes of each section that the threads are parsing, in the order of their
    /// results.
    in_progress: VecDeque<(usize, usize)>,
    begun: bool,
    /// The error to return after the sections in progress.
    failed: Option<Error>,
    broken: Broken,
}

impl FilesStage {
    pub(crate) fn new(files: Arc<Files>, format: Arc<dyn Format>, order: Result<FileOrder>) -> Self {
        let (current, parsed, pool) = (None, ParsedSection::default(), None);
        let (order, failed) =
            order.map_or_else(|error| (FileOrder::none(), Some(error)), |order| (order, None));
        let (in_progress, broken) = (VecDeque::new(), Broken::of_pass(format.skipped()));
        Self {
            files,
            format,
            order,
            reading: 0,
            current,
            parsed,
            made_of: 0,
            pool,
            in_progress,
            begun: false,
            failed,
            broken,
        }
    }

    /// Returns the file that is being read, or opens the next one. Returns `None` after the last one. If `may_wait` is
    /// `false`, also returns `None` if the next file has not been dealt yet.
    fn current(&mut self, may_wait: bool) -> Result<Option<&mut Reading>> {
        if self.current.is_none() {
            let Some(index) = self.order.next(may_wait) else { return Ok(None) };
            let Some(file) = self.files.get(index) else { return Ok(None) };
            self.reading = index;
            let opened = self.format.open(file, &self.broken);
            self.current = Some(opened.map_err(|error| self.format.blame(file, error))?);
        }
        Ok(self.current.as_mut())
    }

    /// Returns the reason why the file with index `file` cannot be parsed, given the parser's error.
    fn blame(&self, file: usize, error: Error) -> Error {
        match self.files.get(file) {
            Some(file) => self.format.blame(file, error),
            None => error,
        }
    }

    /// Handles an error in the current file. If broken records are skipped and the error is about the contents of the
    /// file, counts the rest of the file as one broken record, and closes the file. Otherwise returns the error.
    fn skip_rest(&mut self, error: Error) -> Result<()> {
        let error = self.blame(self.reading, error);
        self.broken.skip_rest(error)?;
        self.current = None;
        Ok(())
    }

    /// Returns the work of the next section. Does not wait for a file: the elements of earlier sections come first.
    fn next_section(&mut self) -> Result<Option<Work>> {
        while let Some(Reading::Sections(sections)) = self.current(false)? {
            match sections.next() {
                Some(Ok(work)) => return Ok(Some(work)),
                Some(Err(error)) => self.skip_rest(error)?,
                None => self.current = None,
            }
        }
        Ok(None)
    }

    /// Sends sections to the threads until they accept no more. Does nothing before the first section, or if only one
    /// thread is to be used.
    fn feed(&mut self) -> Result<()> {
        let threads = self.format.threads();
        while self.begun && threads > 1 && self.has_room() {
            let Some(work) = self.next_section()? else { break };
            let file = self.reading;
            let pool = match &mut self.pool {
                Some(pool) => pool,
                none => none.insert(WorkerPool::start("parse", threads, true, |work: Work| (work.make)())?),
            };
            self.in_progress.push_back((file, work.bytes));
            pool.send(work);
        }
        Ok(())
    }

    /// Returns whether another section can be sent to the threads.
    fn has_room(&mut self) -> bool {
        self.in_progress.iter().map(|(_, bytes)| bytes).sum::<usize>() < MAX_BYTES
            && self.pool.as_mut().is_none_or(WorkerPool::has_room)
    }

    fn read(&mut self, max: usize) -> Result<Option<Chunk>> {
        loop {
            match self.parsed.take(max) {
                Ok(Some(chunk)) => return Ok(Some(chunk)),
                Ok(None) => {}
                Err(error) => return Err(self.blame(self.made_of, error)),
            }
            if self.failed.is_none() {
                self.failed = self.feed().err();
            }
            if let Some(parsed) = self.pool.as_mut().and_then(WorkerPool::receive) {
                self.made_of = self.in_progress.pop_front().map_or(0, |(file, _)| file);
                self.parsed = parsed?;
                continue;
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            let ended = match self.current(true)? {
                None => {
                    self.broken.report();
                    return Ok(None);
                }
                Some(Reading::Elements(stage)) => match stage.next(max) {
                    Some(Ok(chunk)) => return Ok(Some(chunk)),
                    Some(Err(error)) => {
                        self.skip_rest(error)?;
                        true
                    }
                    None => true,
                },
                Some(Reading::Sections(sections)) => match sections.next() {
                    Some(Ok(work)) => {
                        self.parsed = (work.make)();
                        self.made_of = self.reading;
                        self.begun = true;
                        false
                    }
                    Some(Err(error)) => {
                        self.skip_rest(error)?;
                        true
                    }
                    None => true,
                },
            };
            if ended {
                self.current = None;
            }
        }
    }

    /// Returns whether all elements that have been read have also been returned.
    fn is_idle(&self) -> bool {
        self.parsed.is_empty() && self.failed.is_none() && self.pool.as_ref().is_none_or(WorkerPool::is_idle)
    }

    /// Skips up to `count` elements of the current file without parsing them, if possible. Returns the number of
    /// skipped elements, and whether the file has ended.
    fn pass_over(&mut self, count: usize) -> Result<(usize, bool)> {
        // Broken records are no elements, and only parsing finds them.
        if !self.is_idle() || self.broken.skips() {
            return Ok((0, false));
        }
        let skipped = match self.current(true)? {
            None => return Ok((0, false)),
            Some(Reading::Elements(stage)) => stage.skip(count).map(Some),
            Some(Reading::Sections(sections)) => sections.skip(count),
        };
        match skipped {
            Ok(Some(skipped)) => Ok((skipped, skipped < count)),
            Ok(None) => Ok((0, false)),
            Err(error) => Err(self.blame(self.reading, error)),
        }
    }
}

impl Stage for FilesStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.read(max).transpose()
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut left = count;
        while left > 0 {
            let (skipped, ended) = self.pass_over(left)?;
            left -= skipped;
            if ended {
                self.current = None;
            } else if left > 0 {
                match self.read(left)? {
                    Some(chunk) => left -= chunk.len(),
                    None => break,
                }
            }
        }
        Ok(count - left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_source::Sections;
    use crate::testing::values;
    use crate::{Dataset, ElementSpec, Location};
    use distribute_tensor::{HostTensor, Leaf, Tree};
    use distribute_testing::watched;
    use std::io::Read;

    /// A format of bytes, three in each section. A `?` is broken.
    struct Bytes {
        threads: usize,
        skips: bool,
    }

    struct Threes {
        rest: Vec<u8>,
        skips: bool,
    }

    impl Format for Bytes {
        fn describe(&self) -> String {
            "bytes".into()
        }
        fn spec(&self) -> Option<ElementSpec> {
            None
        }
        fn open(&self, file: &Location, _: &Broken) -> Result<Reading> {
            let mut rest = Vec::new();
            file.open()?.read_to_end(&mut rest).map_err(|e| file.io_error(e))?;
            Ok(Reading::Sections(Box::new(Threes { rest, skips: self.skips })))
        }
        fn threads(&self) -> usize {
            self.threads
        }
    }

    impl Sections for Threes {
        fn next(&mut self) -> Option<Result<Work>> {
            let section: Vec<u8> = self.rest.drain(..self.rest.len().min(3)).collect();
            (!section.is_empty())
                .then(|| Ok(Work { bytes: section.len(), make: Box::new(move || parsed(section)) }))
        }
        fn skip(&mut self, count: usize) -> Result<Option<usize>> {
            Ok(self.skips.then(|| self.rest.drain(..count.min(self.rest.len())).count()))
        }
    }

    fn parsed(section: Vec<u8>) -> ParsedSection {
        let whole = section.iter().position(|byte| *byte == b'?').unwrap_or(section.len());
        let numbers = section.iter().take(whole).map(|byte| i64::from(*byte)).collect::<Vec<_>>();
        let tree = Tree::Leaf(Leaf::Host(HostTensor::vector(numbers)));
        let failed = (whole < section.len()).then_some(Error::Empty { operation: "test" });
        ParsedSection { chunk: (whole > 0).then(|| Chunk::rows(tree, whole)), failed }
    }

    fn data(files: &[&str], threads: usize, skips: bool) -> Dataset<i64> {
        let file = |text: &&str| Location::bytes("f", text.to_string());
        Dataset::of_files(files.iter().map(file).collect(), Bytes { threads, skips })
    }

    #[test]
    fn elements_are_in_the_order_of_the_files_whoever_makes_them() {
        watched(|| {
            let long: String = (0..200).map(|i| char::from(b'a' + i % 26)).collect();
            let files = ["", "ab", &long, "", "xyz", "q"];
            let expected: Vec<i64> = files.concat().bytes().map(i64::from).collect();
            for threads in [0, 1, 2, 5] {
                for skips in [true, false] {
                    let data = data(&files, threads, skips);
                    assert_eq!(values(&data), expected);
                    for skip in [1, 2, 7, 203, 205, 900] {
                        assert_eq!(values(&data.skip(skip)), expected[skip.min(expected.len())..]);
                    }
                    assert_eq!(values(&data.take(4)), expected[..4]);
                }
            }
        });
    }

    #[test]
    fn an_error_comes_after_the_elements_before_it() {
        watched(|| {
            for threads in [1, 2, 5] {
                let broken = data(&["abcdefghijklm?", "z"], threads, false);
                let seen: Vec<_> = broken.iter().collect();
                assert_eq!(seen.len(), 14);
                assert!(matches!(seen.last(), Some(Err(Error::Empty { .. }))));
                let missing = Files::from([Location::bytes("f", "abcdefg"), "/nonexistent/f".into()]);
                let missing: Dataset<i64> = Dataset::of_files(missing, Bytes { threads, skips: false });
                let seen: Vec<_> = missing.iter().collect();
                assert_eq!(seen.iter().filter(|element| element.is_ok()).count(), 7);
                assert!(matches!(seen.last(), Some(Err(Error::Io { .. }))));
            }
        });
    }
}
