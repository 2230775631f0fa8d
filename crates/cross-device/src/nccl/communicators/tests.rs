use super::*;
use candle_core::{DType, Device, InplaceOp2, Layout};
use distribute_base::internal::lock;
use distribute_testing::watched;
use std::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(60);

/// A timeout for operations that never complete.
const SHORT: Duration = Duration::from_millis(40);

/// A mock of NCCL on CPUs: sums are written when all operations of the group are complete.
#[derive(Default)]
struct Played {
    calls: Mutex<Vec<String>>,
    /// The sums of the current group: the parts and the destinations of each.
    group: Mutex<Vec<(Vec<Tensor>, Vec<Tensor>)>>,
    /// The call that fails.
    fails: Mutex<Option<&'static str>>,
    /// The number of polls after which each later link or group completes.
    questions: Mutex<usize>,
    /// The number of polls that remain until the current operation completes.
    left: Mutex<usize>,
    /// The channel whose message an abort waits for; `None` if an abort does not wait.
    may_abort: Mutex<Option<mpsc::Receiver<()>>>,
}

impl Played {
    /// Creates a mock that lives forever, as NCCL does.
    fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    fn begin(&self) {
        *lock(&self.left) = *lock(&self.questions);
    }

    /// Sets the number of polls after which each later link or group completes.
    fn take(&self, questions: usize) {
        *lock(&self.questions) = questions;
    }

    fn call(&self, text: String) -> Result<(), CallError> {
        let fails = lock(&self.fails).is_some_and(|fails| text == fails);
        lock(&self.calls).push(text);
        if fails { Err(CallError { call: "played", reason: "it was told to".into() }) } else { Ok(()) }
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.calls))
    }

    fn fail(&self, call: &'static str) {
        *lock(&self.fails) = Some(call);
    }
}

impl Library for Played {
    /// The indices of the GPUs.
    type Communicators = Vec<usize>;

    fn open(&self, gpus: &[usize]) -> Result<Vec<usize>, CallError> {
        self.call(format!("open {gpus:?}")).map(|()| gpus.to_vec())
    }

    fn link(&self, gpus: &Vec<usize>) -> Result<(), CallError> {
        self.begin();
        self.call(format!("link {gpus:?}"))
    }

    /// Returns the last GPU, as the slowest, while polls remain. After that, computes the sums of the group.
    fn busy(&self, gpus: &Vec<usize>, call: &'static str) -> Result<Vec<usize>, CallError> {
        if lock(&self.fails).is_some_and(|fails| fails == call) {
            return Err(CallError { call, reason: "on GPU 1: it fell off".into() });
        }
        let mut left = lock(&self.left);
        if *left > 0 {
            *left -= 1;
            return Ok(gpus.last().copied().into_iter().collect());
        }
        for (parts, sums) in lock(&self.group).drain(..) {
            let total = parts.iter().skip(1).fold(parts[0].clone(), |total, part| (total + part).unwrap());
            sums.iter().for_each(|sum| sum.inplace_op2(&total, &Copied).unwrap());
        }
        Ok(Vec::new())
    }

    fn room(&self, part: &Tensor) -> CandleResult<Tensor> {
        self.call("room".into()).map_err(candle_core::Error::wrap)?;
        part.zeros_like()
    }

    fn start(&self) -> Result<(), CallError> {
        assert_eq!(*lock(&self.left), 0, "a group begins while another call is under way");
        self.call("start".into())
    }

    fn add(&self, communicators: &Vec<usize>, parts: &[&Tensor], sums: &[&Tensor]) -> Result<(), CallError> {
        self.call(format!("add {:?} of {communicators:?}", parts[0].dims()))?;
        assert!(parts.iter().chain(sums).all(|tensor| tensor.is_contiguous()));
        let owned = |tensors: &[&Tensor]| tensors.iter().map(|tensor| (*tensor).clone()).collect();
        lock(&self.group).push((owned(parts), owned(sums)));
        Ok(())
    }

    fn end(&self) -> Result<(), CallError> {
        self.begin();
        self.call("end".into())
    }

    fn queued(&self, part: &Tensor, sum: &Tensor) -> CandleResult<()> {
        assert_eq!(part.dims(), sum.dims());
        assert_eq!(*lock(&self.left), 0, "calls are said to be in the queue before they are");
        self.call("queued".into()).map_err(candle_core::Error::wrap)
    }

    fn abort(&self, communicators: Vec<usize>) {
        if let Some(may_abort) = lock(&self.may_abort).take() {
            may_abort.recv_timeout(PATIENCE).unwrap();
        }
        *lock(&self.left) = 0;
        lock(&self.group).clear();
        self.call(format!("abort {communicators:?}")).unwrap();
    }
}

struct Copied;

impl InplaceOp2 for Copied {
    fn name(&self) -> &'static str {
        "copied"
    }

    fn cpu_fwd(
        &self,
        to: &mut candle_core::CpuStorage,
        _: &Layout,
        from: &candle_core::CpuStorage,
        _: &Layout,
    ) -> CandleResult<()> {
        to.clone_from(from);
        Ok(())
    }
}

fn vector(numbers: &[f32]) -> Tensor {
    Tensor::new(numbers, &Device::Cpu).unwrap()
}

fn two() -> Vec<Vec<Tensor>> {
    let [a, b] = [1f32, 10.].map(|scale| vec![vector(&[scale, 2. * scale]), vector(&[scale])]);
    vec![a, b]
}

#[test]
fn all_sums_are_one_group_and_gpus_are_linked_once() {
    let (played, sets) = (Played::new(), CommunicatorSets::new());
    let sums = sum(played, &sets, &[0, 3], &two(), PATIENCE).unwrap();
    for list in &sums {
        assert_eq!(list[0].to_vec1::<f32>().unwrap(), [11., 22.]);
        assert_eq!(list[1].to_vec1::<f32>().unwrap(), [11.]);
    }
    let group = ["start", "add [2] of [0, 3]", "add [1] of [0, 3]", "end"];
    let queued = ["queued"; 4];
    let calls = [&["room"; 4][..], &["open [0, 3]", "link [0, 3]"], &group, &queued].concat();
    assert_eq!(played.calls(), calls);
    sum(played, &sets, &[0, 3], &two(), PATIENCE).unwrap();
    assert_eq!(played.calls(), [&["room"; 4][..], &group, &queued].concat());
    // Other GPUs, or the same in another order, are another set.
    for gpus in [[0, 1], [3, 0]] {
        sum(played, &sets, &gpus, &two(), PATIENCE).unwrap();
        assert!(played.calls().contains(&format!("link {gpus:?}")));
    }
}

#[test]
fn parts_are_made_contiguous_and_those_of_nothing_stay() {
    let (played, sets) = (Played::new(), CommunicatorSets::new());
    let lists = || -> Vec<Vec<Tensor>> {
        (0..2)
            .map(|_| {
                let turned = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu).unwrap().t().unwrap();
                vec![turned, Tensor::zeros((0, 4), DType::F32, &Device::Cpu).unwrap()]
            })
            .collect()
    };
    let sums = sum(played, &sets, &[0, 1], &lists(), PATIENCE).unwrap();
    assert_eq!(sums[1][0].to_vec2::<f32>().unwrap(), [[2., 8.], [4., 10.], [6., 12.]]);
    assert_eq!(sums[1][1].dims(), [0, 4]);
    assert_eq!(played.calls().iter().filter(|call| call.starts_with("add")).count(), 1);
    // If all parts are empty, no call is made.
    let nothing: Vec<Vec<Tensor>> = lists().into_iter().map(|list| list[1..].to_vec()).collect();
    assert_eq!(sum(played, &sets, &[0, 1], &nothing, PATIENCE).unwrap()[0][0].dims(), [0, 4]);
    let none = sum(played, &sets, &[0, 1], &[vec![], vec![]], PATIENCE).unwrap();
    assert!(none.len() == 2 && none.iter().all(Vec::is_empty));
    assert!(played.calls().is_empty());
}

#[test]
fn a_group_is_ended_and_abandoned_when_a_call_in_it_fails() {
    for (fails, calls) in [
        ("start", &["start", "abort [0, 1]"][..]),
        ("add [2] of [0, 1]", &["start", "add [2] of [0, 1]", "end", "abort [0, 1]"]),
        ("add [1] of [0, 1]", &["start", "add [2] of [0, 1]", "add [1] of [0, 1]", "end", "abort [0, 1]"]),
        ("end", &["start", "add [2] of [0, 1]", "add [1] of [0, 1]", "end", "abort [0, 1]"]),
    ] {
        let (played, sets) = (Played::new(), CommunicatorSets::new());
        sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap();
        played.calls();
        played.fail(fails);
        let error = sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap_err();
        assert!(matches!(error, Fault::Sum(_)), "{fails}: {error}");
        assert_eq!(played.calls(), [&["room"; 4][..], calls].concat(), "{fails}");
        // From then on no call is made, even if the library would succeed.
        *lock(&played.fails) = None;
        let error = sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap_err();
        assert!(matches!(&error, Fault::Abandoned(_)), "{error}");
        assert!(error.to_string().contains("it was told to"), "{error}");
        assert!(played.calls().iter().all(|call| call == "room"));
        // Other GPUs still work.
        sum(played, &sets, &[2, 3], &two(), PATIENCE).unwrap();
    }
}

#[test]
fn a_failure_before_a_group_breaks_nothing() {
    let (played, sets) = (Played::new(), CommunicatorSets::new());
    for (fails, is_open) in [("open [0, 1]", false), ("link [0, 1]", true), ("ncclCommInitRankConfig", true)]
    {
        played.calls();
        played.fail(fails);
        let error = sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap_err();
        assert!(matches!(error, Fault::Link(_)), "{error}");
        assert_eq!(played.calls().contains(&"abort [0, 1]".to_owned()), is_open, "{fails}");
    }
    played.fail("room");
    let error = sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap_err();
    assert!(matches!(error, Fault::Candle(_)), "{error}");
    *lock(&played.fails) = None;
    sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap();
}

#[test]
fn parts_that_differ_are_refused_before_anything_is_called() {
    let (played, sets) = (Played::new(), CommunicatorSets::new());
    let doubles = Tensor::new(&[1f64, 2.], &Device::Cpu).unwrap();
    for (second, text) in [
        (vec![vector(&[1., 2.])], "replica 1 has 1 tensors, but replica 0 has 2"),
        (
            vec![vector(&[1., 2.]), vector(&[1., 2.])],
            "replica 1 has f32[2] as number 1, but replica 0 has f32[1]",
        ),
        (vec![doubles, vector(&[1.])], "replica 1 has f64[2] as number 0, but replica 0 has f32[2]"),
    ] {
        let parts = [two().swap_remove(0), second];
        let error = sum(played, &sets, &[0, 1], &parts, PATIENCE).unwrap_err();
        assert!(matches!(&error, Fault::Parts(what) if what == text), "{error}");
    }
    let error = sum(played, &sets, &[0, 1, 2], &two(), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("there are 3 GPUs, but parts of 2 replicas"), "{error}");
    assert!(played.calls().is_empty());
}

#[test]
fn a_sum_that_is_not_ready_at_once_is_awaited() {
    let (played, sets) = (Played::new(), CommunicatorSets::new());
    for questions in [7, 1, 300] {
        played.take(questions);
        let sums = sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap();
        assert_eq!(sums[1][0].to_vec1::<f32>().unwrap(), [11., 22.]);
    }
    assert!(!played.calls().contains(&"abort [0, 1]".to_owned()));
}

// INV-3
#[test]
fn a_sum_that_never_ends_is_abandoned_at_the_deadline_with_the_late_replicas() {
    for (call, late) in [("ncclCommInitRankConfig", 0), ("ncclGroupEnd", 1)] {
        let (played, sets) = (Played::new(), CommunicatorSets::new());
        for _ in 0..late {
            sum(played, &sets, &[0, 3], &two(), PATIENCE).unwrap();
        }
        played.take(usize::MAX);
        let error = sum(played, &sets, &[0, 3], &two(), SHORT).unwrap_err();
        assert!(matches!(error, Fault::TimedOut(_)), "{error}");
        let text =
            error.on(&[distribute_base::DeviceName::gpu(0), distribute_base::DeviceName::gpu(3)]).to_string();
        for part in [
            "device:GPU:0, ",
            "device:GPU:3",
            &format!("{call}: GPU 3 has not finished within 40ms."),
            "nvidia-smi",
            "Restart the program from its last checkpoint",
            "raise the timeout of the strategy",
            "NCCL_DEBUG=INFO",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert_eq!(played.calls().last().unwrap(), "abort [0, 3]");
        // They are not used even if these GPUs would succeed immediately.
        played.take(0);
        let error = sum(played, &sets, &[0, 3], &two(), PATIENCE).unwrap_err();
        assert!(matches!(error, Fault::Abandoned(_)), "{error}");
        assert!(error.to_string().contains(&format!("{call}: GPU 3 has not finished")), "{error}");
        sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap();
    }
}

// INV-3
#[test]
fn a_replica_that_gives_up_does_not_wait_for_a_hung_call() {
    watched(|| {
        let (played, sets) = (Played::new(), CommunicatorSets::new());
        sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap();
        let (go, may_abort) = mpsc::channel();
        *lock(&played.may_abort) = Some(may_abort);
        played.take(usize::MAX);
        played.calls();
        let error = sum(played, &sets, &[0, 1], &two(), SHORT).unwrap_err();
        assert!(matches!(error, Fault::TimedOut(_)), "{error}");
        assert_eq!(played.calls().last().unwrap(), "end");
        go.send(()).unwrap();
        let gone = || played.calls().contains(&"abort [0, 1]".to_owned()).then_some(());
        poll_until(PATIENCE, gone).unwrap();
    });
}

#[test]
fn a_later_error_is_reported_by_the_sum_that_finds_it() {
    for (call, groups) in [("ncclGroupEnd", 1), ("ncclAllReduce of an earlier sum", 0)] {
        let (played, sets) = (Played::new(), CommunicatorSets::new());
        sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap();
        played.calls();
        played.fail(call);
        let error = sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap_err();
        assert!(matches!(error, Fault::Sum(_)), "{error}");
        let text = format!("NCCL cannot sum: {call}: on GPU 1: it fell off.");
        assert!(error.to_string().contains(&text), "{text:?} is not in {error}");
        let calls = played.calls();
        assert_eq!(calls.iter().filter(|call| *call == "start").count(), groups, "{calls:?}");
        assert_eq!(calls.last().unwrap(), "abort [0, 1]");
    }
}

// INV-3
#[test]
fn waiting_for_another_sum_has_a_deadline() {
    let (played, sets) = (Played::new(), CommunicatorSets::new());
    let held = lock(&sets.0);
    let error = sum(played, &sets, &[0, 1], &two(), SHORT).unwrap_err();
    assert!(matches!(error, Fault::Busy { waited: SHORT }), "{error}");
    drop(held);
    sum(played, &sets, &[0, 1], &two(), PATIENCE).unwrap();
}
