//! The operation that reads files, one after the other.

use super::format::Format;
use super::stage::FilesStage;
use crate::hand::{FileOrder, HandSlot};
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, WorkerShard};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Error, Files, Result};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    pub(crate) fn of_files(files: Files, format: impl Format) -> Self {
        Self::of(FilesSource { files: Arc::new(files), format: Arc::new(format), dealt: None })
    }
}

#[derive(Clone)]
struct FilesSource {
    files: Arc<Files>,
    format: Arc<dyn Format>,
    /// The slot with the files that this worker is dealt; `None` if all files are read, in order.
    dealt: Option<HandSlot>,
}

impl Operation for FilesSource {
    fn describe(&self) -> String {
        format!("{} from {}", self.format.describe(), names(&self.files))
    }

    fn identity(&self) -> String {
        format!("{} from {} files", self.format.identity(), self.files.len())
    }

    fn skipping(&self) -> Option<String> {
        self.format.skipped()?;
        // A record is broken if it exceeds the limit of its file.
        let mut limits: Vec<u64> = self.files.iter().map(|file| file.limit().bytes()).collect();
        limits.dedup();
        Some(format!(", broken ones skipped, of at most {limits:?} bytes{}", self.format.strictness()))
    }

    fn files(&self) -> Option<&Files> {
        Some(&self.files)
    }

    fn cardinality(&self) -> Cardinality {
        if self.files.is_empty() { Cardinality::Finite(0) } else { Cardinality::Unknown }
    }

    fn batching(&self) -> Batching {
        self.format.batching()
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let look = || look.at(&(Arc::new(Self { dealt: None, ..self.clone() }) as Pipeline));
        self.format.spec().or_else(look)
    }

    fn check(&self) -> Result<()> {
        self.format.check()
    }

    fn sharding(&self) -> Sharding {
        Sharding::Files(self.files.len())
    }

    fn shard(&self, worker: &WorkerShard) -> Option<Pipeline> {
        let (files, dealt) = own(&self.files, worker)?;
        Some(Arc::new(FilesSource { files, format: self.format.clone(), dealt }))
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        let order = order(&self.files, self.dealt.as_ref());
        Box::new(FilesStage::new(self.files.clone(), self.format.clone(), order))
    }
}

/// Returns the files that a worker reads and, if files are dealt, the slot for them. Returns `None` if the shard is
/// not by files.
pub(crate) fn own(files: &Arc<Files>, worker: &WorkerShard) -> Option<(Arc<Files>, Option<HandSlot>)> {
    match worker {
        WorkerShard::Files { workers, index } => Some((Arc::new(files.shard(*workers, *index).ok()?), None)),
        WorkerShard::Dealt(slot) => Some((files.clone(), Some(slot.clone()))),
        WorkerShard::Hint { .. } => None,
    }
}

/// Returns the order in which a pass reads files.
///
/// # Errors
/// - [`Error::NotDealt`]: the files are dealt to another pass.
pub(crate) fn order(files: &Files, dealt: Option<&HandSlot>) -> Result<FileOrder> {
    FileOrder::new(files.len(), dealt)
        .ok_or_else(|| Error::NotDealt { why: format!("{} would be read twice in a pass", names(files)) })
}

/// Returns a phrase with the names of the files, or with their number if there are more than four.
pub(crate) fn names(files: &Files) -> String {
    let names: Vec<_> = files.iter().map(|file| format!("'{file}'")).collect();
    match names.as_slice() {
        [] => "no files".into(),
        [first, .., last] if names.len() > 4 => format!("{} files, {first} to {last}", names.len()),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use crate::text::text_lines;
    use crate::{
        AutoShardPolicy, Cardinality, Dataset, DistributeOptions, Distribution, Error, Files, Layout,
        Location, Position,
    };
    use distribute_tensor::HostTensor;

    fn three() -> Files {
        let file = |name: &str, text: &'static str| Location::bytes(name, text);
        Files::from([file("a", "0\n1\n"), file("b", "2\n"), file("c", "3\n4\n5\n")])
    }

    fn read(data: &Dataset<String>) -> String {
        data.iter().map(Result::unwrap).collect()
    }

    #[test]
    fn files_are_read_one_after_the_other() {
        let lines = text_lines(three());
        assert_eq!(read(&lines), "012345");
        assert_eq!(read(&lines), "012345");
        assert_eq!(read(&lines.skip(3)), "345");
        assert_eq!(read(&lines.skip(9)), "");
        assert_eq!(lines.cardinality(), Cardinality::Unknown);
        assert_eq!(lines.explain(), "lines of text from 'a', 'b', 'c' (length unknown)\n");
        assert_eq!(text_lines(Files::default()).cardinality(), Cardinality::Finite(0));
    }

    #[test]
    fn a_missing_file_is_an_error_when_its_turn_comes() {
        let files = Files::from([Location::bytes("a", "0\n"), "/nonexistent/b".into()]);
        let mut lines = text_lines(files).iter();
        assert_eq!(lines.next().unwrap().unwrap(), "0");
        let error = lines.next().unwrap().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path == "/nonexistent/b"), "{error}");
        assert!(lines.next().is_none());
    }

    fn plan(
        data: &Dataset<HostTensor>,
        policy: AutoShardPolicy,
        workers: usize,
    ) -> crate::Result<Distribution<HostTensor>> {
        Distribution::new(
            data,
            Layout { workers, replicas: 1 },
            DistributeOptions { policy, ..Default::default() },
        )
    }

    /// Returns the lines of each worker, by worker.
    fn lines(plan: &Distribution<HostTensor>) -> Vec<String> {
        let mut all = vec![String::new(); plan.layout().workers];
        for step in plan.lockstep(0).unwrap() {
            for (worker, pieces) in all.iter_mut().zip(step.unwrap()) {
                let lines = pieces.iter().flat_map(|piece| piece.as_slice::<Vec<u8>>().unwrap());
                worker.extend(lines.map(|line| String::from_utf8(line.clone()).unwrap()));
            }
        }
        all
    }

    /// Checks AS-3, AS-5 and AS-8: the automatic policy shards by files if there is one for each worker, or else by
    /// data. The policy `File` is refused if there are fewer files than workers.
    #[test]
    fn workers_read_files_of_their_own_where_there_are_enough() {
        let data = text_lines(three()).batch(2);
        let auto = plan(&data, AutoShardPolicy::Auto, 2).unwrap();
        assert_eq!(auto.decision().unwrap().taken, AutoShardPolicy::File);
        assert_eq!(lines(&auto), ["01345", "2"]);
        assert!(auto.explain().contains("worker 1 reads lines of text from 'b'"), "{}", auto.explain());

        let many = plan(&data, AutoShardPolicy::Auto, 4).unwrap();
        assert_eq!(many.decision().unwrap().taken, AutoShardPolicy::Data);
        assert!(many.decision().unwrap().why.starts_with("a source has 3 file(s), not enough for 4 workers"));
        assert_eq!(lines(&many).concat().len(), 6);
        let refused = plan(&data, AutoShardPolicy::File, 4);
        assert!(matches!(refused.err(), Some(Error::TooFewFiles { files: 3, workers: 4 })));
    }

    #[test]
    fn operations_that_count_are_not_done_on_parts() {
        let data = text_lines(three()).take(4).batch(2);
        let auto = plan(&data, AutoShardPolicy::Auto, 2).unwrap();
        assert_eq!(auto.decision().unwrap().taken, AutoShardPolicy::Data);
        assert_eq!(
            auto.decision().unwrap().why,
            "\"take 4\" has other results on some of the files than on all of them"
        );
        assert_eq!(lines(&auto), ["02", "13"]);
        let asked = plan(&data, AutoShardPolicy::File, 2).unwrap();
        assert_eq!(lines(&asked), ["0134", "2"]);
    }

    /// Checks that a position within a pass is rejected if files have been renamed, changed, replaced or added.
    /// Elements would be repeated or lost.
    #[test]
    fn a_position_within_a_pass_is_refused_where_files_are_others() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let data = || {
            let all = Files::glob(folder.path().join("*.txt").to_str().unwrap()).unwrap();
            plan(&text_lines(all).batch(1), AutoShardPolicy::File, 1).unwrap()
        };
        write("a.txt", "0\n1\n");
        write("b.txt", "2\n3\n");
        let begun = data();
        let mut pass = begun.worker(0, 0).unwrap();
        let before = pass.position();
        pass.step().unwrap();
        let position = pass.position();
        data().check_position(&position).unwrap();
        let refused = |expected: &str| {
            let error = data().check_position(&position).unwrap_err();
            assert!(matches!(error, Error::Position { .. }), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
            assert!(data().resume(0, &position).is_err());
        };
        // Between passes files may change.
        let unread = || {
            data().check_position(&before).unwrap();
            assert!(data().resume(0, &before).unwrap().position().files.is_some());
        };
        let at = |name: &str| format!("'{}'", folder.path().join(name).display());
        write("b.txt", "2\n3\n4\n");
        refused(&format!("the size of {} is 6 bytes here, but was 4 bytes when the pass began", at("b.txt")));
        unread();
        write("b.txt", "7\n3\n");
        refused(&format!("the content of {} is of checksum ", at("b.txt")));
        write("b.txt", "2\n3\n");
        data().check_position(&position).unwrap();
        std::fs::rename(folder.path().join("a.txt"), folder.path().join("c.txt")).unwrap();
        refused(&format!("file 0 is {} here, but was {} when", at("b.txt"), at("a.txt")));
        unread();
        std::fs::rename(folder.path().join("c.txt"), folder.path().join("a.txt")).unwrap();
        write("aa.txt", "5\n");
        refused(&format!("is 3 (file 1 is {}) here, but was 2 (file 1 is {})", at("aa.txt"), at("b.txt")));
        std::fs::remove_file(folder.path().join("aa.txt")).unwrap();
        data().check_position(&position).unwrap();
        // Positions of earlier versions have no files.
        let earlier = Position { files: None, ..position };
        write("b.txt", "2\n3\n4\n");
        data().check_position(&earlier).unwrap();
    }

    /// Checks that a position stays valid if the folder of the files is moved. A cache does not: see `cache_file.rs`.
    #[test]
    fn a_position_goes_on_where_files_were_moved() {
        let files = |folder: &str| {
            Files::from(["a", "b"].map(|name| Location::bytes(format!("{folder}/{name}"), "0\n1\n")))
        };
        let data = |folder| text_lines(files(folder)).batch(1);
        let mut pass = plan(&data("old"), AutoShardPolicy::File, 1).unwrap().worker(0, 0).unwrap();
        pass.step().unwrap();
        plan(&data("new"), AutoShardPolicy::File, 1).unwrap().check_position(&pass.position()).unwrap();
    }

    /// Checks that a pass over the workers' own files resumes with a different layout.
    #[test]
    fn a_pass_over_files_goes_on_with_another_number_of_workers() {
        let data = text_lines(three()).batch(2);
        let two = plan(&data, AutoShardPolicy::File, 2).unwrap();
        let mut begun = two.lockstep(0).unwrap();
        let first: Vec<_> = begun.next().unwrap().unwrap().concat();
        let mut seen: Vec<_> = first.iter().flat_map(|p| p.as_slice::<Vec<u8>>().unwrap().to_vec()).collect();
        let mut pass = two.worker(0, 0).unwrap();
        pass.step().unwrap();
        let three = plan(&data, AutoShardPolicy::File, 3).unwrap();
        for worker in 0..3 {
            let mut rest = three.resume(worker, &pass.position()).unwrap();
            while let Some(pieces) = rest.step().unwrap() {
                seen.extend(pieces.iter().flat_map(|p| p.as_slice::<Vec<u8>>().unwrap().to_vec()));
            }
        }
        seen.sort();
        assert_eq!(seen.concat(), b"012345");
    }
}
