use super::*;
use candle_core::{DType, Device, InplaceOp2, Layout};
use std::sync::Mutex;

/// NCCL, played on CPUs: sums are there when the group has ended.
#[derive(Default)]
struct Played {
    calls: Mutex<Vec<String>>,
    /// Sums of the group: the parts, and where their sums go.
    group: Mutex<Vec<(Vec<Tensor>, Vec<Tensor>)>>,
    /// Which call fails.
    fails: Mutex<Option<&'static str>>,
}

impl Played {
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
    /// Of which GPUs.
    type Communicators = Vec<usize>;

    fn link(&self, gpus: &[usize]) -> Result<Vec<usize>, CallError> {
        self.call(format!("link {gpus:?}")).map(|()| gpus.to_vec())
    }

    fn room(&self, part: &Tensor) -> CandleResult<Tensor> {
        self.call("room".into()).map_err(candle_core::Error::wrap)?;
        part.zeros_like()
    }

    fn start(&self) -> Result<(), CallError> {
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
        self.call("end".into())?;
        for (parts, sums) in lock(&self.group).drain(..) {
            let total = parts.iter().skip(1).fold(parts[0].clone(), |total, part| (total + part).unwrap());
            sums.iter().for_each(|sum| sum.inplace_op2(&total, &Copied).unwrap());
        }
        Ok(())
    }

    fn queued(&self, part: &Tensor, sum: &Tensor) -> CandleResult<()> {
        assert_eq!(part.dims(), sum.dims());
        self.call("queued".into()).map_err(candle_core::Error::wrap)
    }

    fn abort(&self, communicators: Vec<usize>) {
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
    let (played, sets) = (Played::default(), Sets::new());
    let sums = sum(&played, &sets, &[0, 3], &two()).unwrap();
    for list in &sums {
        assert_eq!(list[0].to_vec1::<f32>().unwrap(), [11., 22.]);
        assert_eq!(list[1].to_vec1::<f32>().unwrap(), [11.]);
    }
    let group = ["start", "add [2] of [0, 3]", "add [1] of [0, 3]", "end"];
    let queued = ["queued"; 4];
    let calls = [&["room"; 4][..], &["link [0, 3]"], &group, &queued].concat();
    assert_eq!(played.calls(), calls);
    sum(&played, &sets, &[0, 3], &two()).unwrap();
    assert_eq!(played.calls(), [&["room"; 4][..], &group, &queued].concat());
    // Other GPUs, and the same in another order, are another set.
    for gpus in [[0, 1], [3, 0]] {
        sum(&played, &sets, &gpus, &two()).unwrap();
        assert!(played.calls().contains(&format!("link {gpus:?}")));
    }
}

#[test]
fn parts_are_made_contiguous_and_those_of_nothing_stay() {
    let (played, sets) = (Played::default(), Sets::new());
    let lists = || -> Vec<Vec<Tensor>> {
        (0..2)
            .map(|_| {
                let turned = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu).unwrap().t().unwrap();
                vec![turned, Tensor::zeros((0, 4), DType::F32, &Device::Cpu).unwrap()]
            })
            .collect()
    };
    let sums = sum(&played, &sets, &[0, 1], &lists()).unwrap();
    assert_eq!(sums[1][0].to_vec2::<f32>().unwrap(), [[2., 8.], [4., 10.], [6., 12.]]);
    assert_eq!(sums[1][1].dims(), [0, 4]);
    assert_eq!(played.calls().iter().filter(|call| call.starts_with("add")).count(), 1);
    // Nothing else: nobody is asked.
    let nothing: Vec<Vec<Tensor>> = lists().into_iter().map(|list| list[1..].to_vec()).collect();
    assert_eq!(sum(&played, &sets, &[0, 1], &nothing).unwrap()[0][0].dims(), [0, 4]);
    let none = sum(&played, &sets, &[0, 1], &[vec![], vec![]]).unwrap();
    assert!(none.len() == 2 && none.iter().all(Vec::is_empty));
    assert!(played.calls().is_empty());
}

#[test]
fn a_group_is_ended_and_given_up_when_a_call_in_it_fails() {
    for (fails, calls) in [
        ("start", &["start", "abort [0, 1]"][..]),
        ("add [2] of [0, 1]", &["start", "add [2] of [0, 1]", "end", "abort [0, 1]"]),
        ("add [1] of [0, 1]", &["start", "add [2] of [0, 1]", "add [1] of [0, 1]", "end", "abort [0, 1]"]),
        ("end", &["start", "add [2] of [0, 1]", "add [1] of [0, 1]", "end", "abort [0, 1]"]),
    ] {
        let (played, sets) = (Played::default(), Sets::new());
        sum(&played, &sets, &[0, 1], &two()).unwrap();
        played.calls();
        played.fail(fails);
        let error = sum(&played, &sets, &[0, 1], &two()).unwrap_err();
        assert!(matches!(error, Fault::Sum(_)), "{fails}: {error}");
        assert_eq!(played.calls(), [&["room"; 4][..], calls].concat(), "{fails}");
        // From then on nothing of it is asked, whatever the library would do.
        *lock(&played.fails) = None;
        let error = sum(&played, &sets, &[0, 1], &two()).unwrap_err();
        assert!(matches!(&error, Fault::GivenUp(_)), "{error}");
        assert!(error.to_string().contains("it was told to"), "{error}");
        assert!(played.calls().iter().all(|call| call == "room"));
        // Of other GPUs, all is well.
        sum(&played, &sets, &[2, 3], &two()).unwrap();
    }
}

#[test]
fn what_fails_before_a_group_breaks_nothing() {
    let (played, sets) = (Played::default(), Sets::new());
    played.fail("link [0, 1]");
    let error = sum(&played, &sets, &[0, 1], &two()).unwrap_err();
    assert!(matches!(error, Fault::Link(_)), "{error}");
    played.fail("room");
    let error = sum(&played, &sets, &[0, 1], &two()).unwrap_err();
    assert!(matches!(error, Fault::Candle(_)), "{error}");
    *lock(&played.fails) = None;
    sum(&played, &sets, &[0, 1], &two()).unwrap();
}

#[test]
fn parts_that_differ_are_refused_before_anything_is_called() {
    let (played, sets) = (Played::default(), Sets::new());
    let doubles = Tensor::new(&[1f64, 2.], &Device::Cpu).unwrap();
    for (second, text) in [
        (vec![vector(&[1., 2.])], "replica 1 has 1 tensors, and replica 0 has 2"),
        (
            vec![vector(&[1., 2.]), vector(&[1., 2.])],
            "replica 1 has f32[2] as number 1, and replica 0 f32[1]",
        ),
        (vec![doubles, vector(&[1.])], "replica 1 has f64[2] as number 0, and replica 0 f32[2]"),
    ] {
        let parts = [two().swap_remove(0), second];
        let error = sum(&played, &sets, &[0, 1], &parts).unwrap_err();
        assert!(matches!(&error, Fault::Parts(what) if what == text), "{error}");
    }
    let error = sum(&played, &sets, &[0, 1, 2], &two()).unwrap_err();
    assert!(error.to_string().contains("there are 3 GPUs, and parts of 2 replicas"), "{error}");
    assert!(played.calls().is_empty());
}
