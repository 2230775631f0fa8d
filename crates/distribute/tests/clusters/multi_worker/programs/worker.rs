//! One worker of a random program: its state and its acts.

use super::program::{Act, Call, Fault, Kind, Mistake, Program, Wrong};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::checkpoint::{Checkpointed, Reader, Restore, Writer};
use distribute::data::Dataset;
use distribute::input::DistributedIterator;
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{
    Checkpoint, Error, HostTensor, PerReplica, ReduceOp, ReplicaContext, Replicated, Result, Sgd, Strategy,
    Variable,
};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A gate that delays the straggler until the given number of other workers have their error.
#[derive(Default)]
pub struct Gate {
    told: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    pub fn open(&self) {
        *self.told.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    pub fn wait(&self, others: usize) {
        let told = self.told.lock().unwrap();
        let long = Duration::from_secs(40);
        let (_told, end) = self.changed.wait_timeout_while(told, long, |told| *told < others).unwrap();
        assert!(!end.timed_out(), "the others wait beyond their deadline");
    }
}

/// A worker of a random program, with its state.
pub struct Worker<'a> {
    program: &'a Program,
    gate: &'a Gate,
    kit: Kit<'a>,
    batches: DistributedIterator<HostTensor>,
    /// The expected values of `written` and `seen` after the acts that succeeded.
    wrote: i64,
    counted: i64,
}

/// The objects that a worker's replicas use.
struct Kit<'a> {
    strategy: &'a Strategy,
    model: Replicated<Linear>,
    optimizer: Sgd,
    /// The ON_WRITE variable that merge functions update.
    merged: Variable,
    written: Variable,
    /// The ON_READ variable.
    seen: Variable,
    folder: PathBuf,
}

/// The fault of a replica, for the act in which it occurs.
#[derive(Clone, Copy)]
struct Planted<'a> {
    fault: &'a Fault,
    gate: &'a Gate,
}

fn variable(name: &str, initial: HostTensor, synchronization: VariableSynchronization) -> Result<Variable> {
    let new = Variable::builder(name, initial).synchronization(synchronization);
    new.aggregation(VariableAggregation::Sum).create()
}

/// Returns numbers that differ between calls, replicas and elements.
fn numbers(salt: i64, id: usize, len: usize) -> Vec<i64> {
    (0..len as i64).map(|i| salt * 100_000 + i * 10 + id as i64).collect()
}

fn sums(salt: i64, replicas: usize, len: usize) -> Vec<i64> {
    let all: Vec<Vec<i64>> = (0..replicas).map(|id| numbers(salt, id, len)).collect();
    (0..len).map(|i| all.iter().map(|one| one[i]).sum()).collect()
}

fn joined(salt: i64, replicas: usize, len: usize) -> Vec<i64> {
    (0..replicas).flat_map(|id| numbers(salt, id, len + id)).collect()
}

impl<'a> Worker<'a> {
    pub fn new(
        strategy: &'a Strategy,
        program: &'a Program,
        gate: &'a Gate,
        folder: PathBuf,
    ) -> Result<Self> {
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb.pp("fc")))?;
        // An error in a step that has not begun does not change the state. For odd numbers of workers, it is sharded.
        let optimizer = Sgd::new(&model.variables, 0.01)?;
        let optimizer = if program.workers % 2 == 1 { optimizer.shard_state()? } else { optimizer };
        let zeros = |len: usize| HostTensor::vector(vec![0i64; len]);
        let (merged, written, seen) = strategy.scope(|| {
            let merged = variable("merged", zeros(3), VariableSynchronization::OnWrite)?;
            let written = variable("written", zeros(2), VariableSynchronization::OnWrite)?;
            Ok((merged, written, variable("seen", zeros(1), VariableSynchronization::OnRead)?))
        })?;
        // More rows than replicas, so that one has two.
        let size = strategy.num_replicas_in_sync() + 1;
        let breaks = match program.fault.kind {
            Kind::Worker(Mistake::Unable) if strategy.world().worker() == program.culprit() => {
                (program.batches() * size) as i64
            }
            _ => i64::MAX,
        };
        let rows = Dataset::range(8 * size as i64)
            .try_map(move |row: i64| if row < breaks { Ok(row) } else { Err("planted".to_string()) });
        let batches = strategy.distribute_dataset(rows.batch(size))?.iter();
        let kit = Kit { strategy, model, optimizer, merged, written, seen, folder };
        Ok(Self { program, gate, kit, batches, wrote: 0, counted: 0 })
    }

    /// Performs an act correctly. The results are compared with those of a single thread that has the values of all
    /// replicas.
    pub fn healthy(&mut self, number: usize, act: &Act) -> Result<()> {
        if let Act::Run(calls) = act {
            let n = self.kit.strategy.num_replicas_in_sync();
            for (at, call) in calls.iter().enumerate() {
                match call {
                    Call::Write => self.wrote += sums(salt(number, at), n, 1)[0],
                    Call::Count => self.counted += (n * (n + 1) / 2) as i64,
                    _ => {}
                }
            }
        }
        self.make(number, act, None, true)
    }

    /// Performs the act with the fault on this worker.
    pub fn planted(&mut self) -> Result<()> {
        let (program, me) = (self.program, self.kit.strategy.world().worker());
        let (fault, act) = (&program.fault, program.planted());
        let mine = me == program.culprit();
        match &fault.kind {
            Kind::Worker(Mistake::Other(other)) if mine => self.make(fault.act, other, None, false),
            Kind::Worker(Mistake::Late) if mine => {
                self.gate.wait(program.workers - 1);
                self.make(fault.act, act, None, false)
            }
            Kind::Worker(Mistake::Late) => {
                let made = self.make(fault.act, act, None, false);
                self.gate.open();
                made
            }
            Kind::Worker(_) if !mine => self.make(fault.act, act, None, false),
            _ => self.make(fault.act, act, Some(Planted { fault, gate: self.gate }), false),
        }
    }

    fn make(&mut self, number: usize, act: &Act, planted: Option<Planted<'_>>, check: bool) -> Result<()> {
        let (strategy, salt) = (self.kit.strategy, salt(number, 0));
        let n = strategy.num_replicas_in_sync();
        let mistake = planted.and_then(|planted| match &planted.fault.kind {
            Kind::Worker(mistake) => Some((mistake, planted.fault.replica)),
            _ => None,
        });
        let unable = matches!(mistake, Some((Mistake::Unable, _)));
        let values = |len: &dyn Fn(usize) -> usize| {
            let mut values: Vec<_> = strategy
                .world()
                .local_replicas()
                .map(|id| match mistake {
                    Some((Mistake::Shape, replica)) if id == replica => other_shape(salt, id, len(id)),
                    Some((Mistake::DType, replica)) if id == replica => other_dtype(len(id)),
                    _ => HostTensor::vector(numbers(salt, id, len(id))),
                })
                .collect();
            if unable {
                values.push(values[0].clone());
            }
            PerReplica::from_values(values)
        };
        match act {
            Act::Run(calls) => self.kit.run(number, calls, planted, check)?,
            Act::Reduce(len) => {
                let sum = strategy.reduce(ReduceOp::Sum, values(&|_| *len), None)?;
                assert!(!check || sum.to_vec::<i64>()? == sums(salt, n, *len));
            }
            Act::Gather(rows) => {
                let all = strategy.gather(values(&|id| rows + id), 0)?;
                assert!(!check || all.to_vec::<i64>()? == joined(salt, n, *rows));
            }
            Act::Read => {
                let seen = self.kit.seen.read::<HostTensor>()?;
                assert!(!check || seen.to_vec::<i64>()? == [self.counted]);
            }
            Act::Step => {
                let batch = self.batches.next().unwrap()?;
                let (model, optimizer) = (&self.kit.model, &self.kit.optimizer);
                strategy.run((model, batch), |ctx, (model, rows)| {
                    let rows: Vec<f32> =
                        rows.to_vec::<i64>()?.into_iter().map(|row| row as f32 / 100.).collect();
                    let x = Tensor::from_vec(
                        rows.iter().flat_map(|x| [*x, 1.]).collect(),
                        (rows.len(), 2),
                        &Device::Cpu,
                    )?;
                    optimizer.minimize(ctx, model.forward(&x)?.sqr()?.mean_all()?, rows.len()).map(drop)
                })?;
            }
            Act::Save => {
                let part = Part { broken: unable };
                Checkpoint::new()
                    .part("model", &self.kit.model.variables)
                    .part("steps", strategy)
                    .part("seen", &self.kit.seen)
                    .part("part", &part)
                    .save(self.kit.folder.join(format!("{number}")))?;
            }
        }
        if check {
            assert_eq!(self.kit.written.read::<HostTensor>()?.to_vec::<i64>()?, [self.wrote; 2]);
        }
        Ok(())
    }

    /// Makes every kind of call after the fault, and checks the results. The state must be the same on all workers.
    pub fn afterwards(&mut self) -> Result<()> {
        let (strategy, n) = (self.kit.strategy, self.kit.strategy.num_replicas_in_sync());
        let calls =
            [Call::Reduce(2), Call::Gather(1), Call::Merge, Call::Minimize { collective: true }, Call::Write];
        self.kit.run(900, &calls, None, true)?;
        self.make(901, &Act::Reduce(2), None, false)?;
        self.kit.seen.read::<HostTensor>()?;
        let batches = strategy.distribute_dataset(Dataset::range(n as i64).batch(n))?;
        assert_eq!(batches.iter().map(|step| step.map(drop)).collect::<Result<Vec<_>>>()?.len(), 1);
        let mine = format!(
            "{} steps of the optimizer, {} of the strategy, {:?} merged, {:?} written, weights {}",
            self.kit.optimizer.finished_steps(),
            strategy.steps(),
            self.kit.merged.read::<HostTensor>()?.to_vec::<i64>()?,
            self.kit.written.read::<HostTensor>()?.to_vec::<i64>()?,
            self.kit.model.variables.sha256()?,
        );
        assert!(self.kit.merged.copies_agree()? && self.kit.written.copies_agree()?);
        let each = vec![HostTensor::vector(vec![mine.into_bytes()]); self.program.replicas];
        let each = strategy.gather(PerReplica::from_values(each), 0)?.to_vec::<Vec<u8>>()?;
        let each: Vec<_> = each.iter().map(|text| String::from_utf8_lossy(text)).collect();
        assert!(each.iter().all(|other| *other == each[0]), "workers have drifted apart: {each:#?}");
        Ok(())
    }

    /// Makes a call in which a worker is missing. The call must fail at once.
    pub fn call_without_one(&self) -> Result<i64> {
        self.kit.strategy.reduce(ReduceOp::Sum, 1i64, None)
    }
}

impl Kit<'_> {
    fn run(&self, number: usize, calls: &[Call], planted: Option<Planted<'_>>, check: bool) -> Result<()> {
        let others = self.strategy.num_replicas_in_sync() - 1;
        let run =
            self.strategy.run(&self.model, |ctx, model| {
                let Some((Planted { fault, gate }, at, wrong)) =
                    planted.and_then(|planted| match &planted.fault.kind {
                        Kind::Replica(at, wrong) => Some((planted, *at, wrong)),
                        _ => None,
                    })
                else {
                    return calls.iter().enumerate().try_for_each(|(at, call)| {
                        self.call(ctx, model, call, salt(number, at), None, check)
                    });
                };
                let late = *wrong == Wrong::Late;
                if ctx.replica_id_in_sync_group() != fault.replica {
                    let made = calls.iter().enumerate().try_for_each(|(at, call)| {
                        self.call(ctx, model, call, salt(number, at), None, false)
                    });
                    if late {
                        gate.open();
                    }
                    return made;
                }
                for (i, call) in with_fault(calls, at, wrong).iter().enumerate() {
                    if late && i == at {
                        gate.wait(others);
                    }
                    self.call(ctx, model, call, salt(number, i), (i == at).then_some(wrong), false)?;
                }
                match wrong {
                    Wrong::Fails => Err(Error::other("planted")),
                    Wrong::Panics => std::panic::resume_unwind(Box::new("planted")),
                    _ => Ok(()),
                }
            });
        run.map(drop)
    }

    fn call(
        &self,
        ctx: &ReplicaContext,
        model: &Linear,
        call: &Call,
        salt: i64,
        wrong: Option<&Wrong>,
        check: bool,
    ) -> Result<()> {
        let (id, n) = (ctx.replica_id_in_sync_group(), ctx.num_replicas_in_sync());
        let value = |len: usize| match wrong {
            Some(Wrong::Shape) => other_shape(salt, id, len),
            Some(Wrong::DType) => other_dtype(len),
            _ => HostTensor::vector(numbers(salt, id, len)),
        };
        match call {
            Call::Reduce(len) => {
                let sum = ctx.all_reduce(ReduceOp::Sum, value(*len))?;
                assert!(!check || sum.to_vec::<i64>()? == sums(salt, n, *len));
            }
            Call::Gather(rows) => {
                let all = ctx.all_gather(value(rows + id), 0)?;
                assert!(!check || all.to_vec::<i64>()? == joined(salt, n, *rows));
            }
            Call::Merge => {
                let total = ctx.merge_call(value(3), |strategy, values| {
                    let total = strategy.reduce_to(ReduceOp::Sum, &values, &self.merged)?;
                    strategy.update(&self.merged, &total, |merged, total| merged.assign_add(total))?;
                    Ok(total.into_inner())
                })?;
                assert!(!check || total.to_vec::<i64>()? == sums(salt, n, 3));
            }
            Call::Minimize { collective } => {
                if !collective && wrong.is_none() && id > 0 && salt % 2 == 0 {
                    // The other replicas have examples.
                    return self.optimizer.skip(ctx).map(drop);
                }
                let x = Tensor::new(&[[1f32, id as f32 / 10.]], &Device::Cpu)?;
                let mut y = model.forward(&x)?.sum_all()?;
                if *collective {
                    let all = ctx.all_reduce(ReduceOp::Sum, y.reshape(1)?)?;
                    y = (y + (all.sum_all()? * 0.1)?)?;
                }
                let mut loss = y.sqr()?;
                if let Some(Wrong::Backward { panics }) = wrong {
                    loss = loss.apply_op1(Breaks { panics: *panics })?;
                }
                self.optimizer.minimize(ctx, loss, 1 + id % 2)?;
            }
            Call::Write => {
                let mine = numbers(salt, id, 1)[0];
                self.written.assign_add(HostTensor::vector(vec![mine; 2]))?;
            }
            Call::Count => self.seen.assign_add(HostTensor::vector(vec![id as i64 + 1]))?,
        }
        Ok(())
    }
}

fn salt(act: usize, call: usize) -> i64 {
    (act * 10 + call + 1) as i64
}

fn other_shape(salt: i64, id: usize, len: usize) -> HostTensor {
    HostTensor::vector(numbers(salt, id, len)).reshape([len, 1]).unwrap()
}

fn other_dtype(len: usize) -> HostTensor {
    HostTensor::vector(vec![1f64; len])
}

/// Returns the calls of the faulty replica.
fn with_fault(calls: &[Call], at: usize, wrong: &Wrong) -> Vec<Call> {
    let mut calls = calls.to_vec();
    match wrong {
        Wrong::Returns | Wrong::Fails | Wrong::Panics => calls.truncate(at),
        Wrong::Missing => drop(calls.remove(at)),
        Wrong::Other(other) => calls[at] = other.clone(),
        Wrong::Additional(other) => calls.insert(at, other.clone()),
        Wrong::Shape | Wrong::DType | Wrong::Backward { .. } | Wrong::Late => {}
    }
    calls
}

/// A component of a checkpoint that cannot be read on one worker.
struct Part {
    broken: bool,
}

impl Checkpointed for Part {
    fn save(&self, _: &str, _: &mut Writer) -> Result<()> {
        if self.broken { Err(Error::other("planted")) } else { Ok(()) }
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

/// An operation that returns its argument, and whose backward pass fails.
struct Breaks {
    panics: bool,
}

impl CustomOp1 for Breaks {
    fn name(&self) -> &'static str {
        "planted"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let values = storage.as_slice::<f32>()?;
        let value = values[layout.start_offset()];
        Ok((CpuStorage::F32(vec![value]), layout.shape().clone()))
    }
    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        if self.panics {
            std::panic::resume_unwind(Box::new("planted"))
        } else {
            Err(candle_core::Error::Msg("planted".into()))
        }
    }
}
