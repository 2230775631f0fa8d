//! Matching arguments to parameters, and encoding arguments.

use super::handles::PerWorker;
use super::kept_value::KeptValue;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_coordinator::{Argument, Failure, FailureKind, ResourceId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The marker for a parameter of type `&T`, whose value the worker keeps.
#[derive(Debug)]
pub struct Resource<T>(PhantomData<fn() -> T>);

/// The marker for a parameter of type `T`, whose value is sent with the call.
#[derive(Debug)]
pub struct Value<T>(PhantomData<fn() -> T>);

/// A parameter of a remote function: [`Resource`] or [`Value`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a remote function",
    note = "a `&T` (`Resource<T>`) is a value that a worker keeps: T must be `Send + Sync + 'static`",
    note = "any other `T` (`Value<T>`) is sent: it must implement serde's `Serialize` and `Deserialize`"
)]
pub trait Param {
    /// The decoded parameter, which the worker holds during the call.
    type Decoded;

    #[doc(hidden)]
    fn decode(argument: &Argument, resources: &dyn Lookup) -> Result<Self::Decoded, Failure>;
}

/// The parameters of a remote function, as a tuple of [`Param`]s.
pub trait Params {
    /// The decoded parameters, as a tuple.
    type Decoded;

    #[doc(hidden)]
    fn decode(arguments: &[Argument], resources: &dyn Lookup) -> Result<Self::Decoded, Failure>;
}

/// A source of the values that a worker keeps, from which arguments are decoded.
#[doc(hidden)]
pub trait Lookup {
    fn resource(&self, id: ResourceId) -> Option<KeptValue>;
}

impl<T: Send + Sync + 'static> Param for Resource<T> {
    type Decoded = Arc<T>;

    fn decode(argument: &Argument, resources: &dyn Lookup) -> Result<Arc<T>, Failure> {
        let invalid = |text: String| Failure::new(FailureKind::InvalidArgument, text);
        let expected = std::any::type_name::<T>();
        let Argument::Resource(id) = argument else {
            return Err(invalid(format!("is a value, but a kept {expected} is expected")));
        };
        let Some(kept) = resources.resource(*id) else {
            let text = format!("is {id}, which this worker has not created, or has dropped");
            return Err(Failure::new(FailureKind::Resource, text));
        };
        let found = kept.name;
        kept.value
            .downcast()
            .map_err(|_| invalid(format!("is {id}, a {found}, but a {expected} is expected")))
    }
}

impl<T: Serialize + DeserializeOwned> Param for Value<T> {
    type Decoded = T;

    fn decode(argument: &Argument, _: &dyn Lookup) -> Result<T, Failure> {
        let expected = std::any::type_name::<T>();
        let text = match argument {
            Argument::Resource(id) => format!("is {id}, but a value is expected, a {expected}"),
            Argument::Value(bytes) => match postcard::take_from_bytes(bytes) {
                Ok((value, [])) => return Ok(value),
                Ok((_, more)) => {
                    format!("has {} bytes more than the expected {expected}", more.len())
                }
                Err(error) => format!("has {} bytes that are not a {expected}: {error}", bytes.len()),
            },
        };
        Err(Failure::new(FailureKind::InvalidArgument, text))
    }
}

/// The identity of a coordinator in this process. It is used to check that arguments belong to the
/// coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender(u64);

impl Sender {
    /// Creates an identity that is different from all others in this process.
    #[expect(clippy::new_without_default, reason = "each is different")]
    pub fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self(NUMBERS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A value that can be passed to a parameter of a remote function.
///
/// ```compile_fail,E0277
/// # use distribute::remote::*;
/// # struct Model;
/// # struct Data;
/// # #[distribute::remote]
/// fn step(worker: &WorkerContext, model: &Model, data: &Data) -> distribute::Result<()> {
/// #    Ok(())
/// # }
/// # fn call(model: PerWorker<Model>, data: PerWorker<Data>, to: Sender) {
/// remote_call(step, (&data, &model)); // the other way round
/// # }
/// # fn remote_call<F: RemoteFunction>(_: F, _: impl Args<F::Params>) {}
/// ```
///
/// The result of another call cannot be passed, because it is not available before that call has finished:
///
/// ```compile_fail,E0277
/// # use distribute::remote::*;
/// # #[distribute::remote]
/// fn twice(worker: &WorkerContext, x: f32) -> distribute::Result<f32> {
///     Ok(2. * x)
/// }
/// # fn call(x: RemoteValue<f32>) {
/// remote_call(twice, (x,)); // fetch() it, and pass the value
/// # }
/// # fn remote_call<F: RemoteFunction>(_: F, _: impl Args<F::Params>) {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not fit the parameter `{P}` of a remote function",
    label = "this argument",
    note = "a parameter `&T` (`Resource<T>`) takes a `&PerWorker<T>`, from create_per_worker_value or \
            create_per_worker_dataset",
    note = "any other parameter `T` (`Value<T>`) takes a `T`; instead of a `RemoteValue<T>`, fetch() it and pass the value"
)]
pub trait Arg<P> {
    #[doc(hidden)]
    fn encode(self, from: Sender) -> Result<Argument>;
}

/// The arguments of a remote function: a tuple with one argument for each parameter after the worker.
///
/// ```compile_fail,E0277
/// # use distribute::remote::*;
/// # #[distribute::remote]
/// fn twice(worker: &WorkerContext, x: f32) -> distribute::Result<f32> {
///     Ok(2. * x)
/// }
/// remote_call(twice, (1., 2.)); // one too many
/// # fn remote_call<F: RemoteFunction>(_: F, _: impl Args<F::Params>) {}
/// ```
#[diagnostic::on_unimplemented(
    message = "the arguments `{Self}` do not fit the parameters `{P}` of a remote function",
    note = "pass one for each parameter after the worker, in a tuple: `(&model, 0.5)`, `(&model,)` for one, `()` for none"
)]
pub trait Args<P> {
    #[doc(hidden)]
    fn encode(self, from: Sender) -> Result<Vec<Argument>>;
}

impl<T> Arg<Resource<T>> for &PerWorker<T> {
    fn encode(self, from: Sender) -> Result<Argument> {
        self.id_for(from).map(Argument::Resource)
    }
}

impl<T: Serialize> Arg<Value<T>> for T {
    fn encode(self, _: Sender) -> Result<Argument> {
        let bytes = postcard::to_stdvec(&self).map_err(|error| {
            Error::invalid("schedule", format!("a {} cannot be sent: {error}", std::any::type_name::<T>()))
        })?;
        Ok(Argument::Value(Bytes::from(bytes)))
    }
}

macro_rules! tuples {
    ($(($($number:tt $P:ident $A:ident),*);)+) => {$(
        impl<$($P: Param),*> Params for ($($P,)*) {
            type Decoded = ($($P::Decoded,)*);

            fn decode(arguments: &[Argument], resources: &dyn Lookup) -> Result<Self::Decoded, Failure> {
                const EXPECTED: usize = <[usize]>::len(&[$($number),*]);
                if arguments.len() != EXPECTED {
                    return Err(wrong_number(arguments.len(), EXPECTED));
                }
                let _ = resources;
                Ok(($($P::decode(&arguments[$number], resources).map_err(of_argument($number, EXPECTED))?,)*))
            }
        }

        impl<$($P, $A: Arg<$P>),*> Args<($($P,)*)> for ($($A,)*) {
            fn encode(self, from: Sender) -> Result<Vec<Argument>> {
                let _ = from;
                Ok(vec![$(self.$number.encode(from)?),*])
            }
        }
    )+};
}

tuples! {
    ();
    (0 P0 A0);
    (0 P0 A0, 1 P1 A1);
    (0 P0 A0, 1 P1 A1, 2 P2 A2);
    (0 P0 A0, 1 P1 A1, 2 P2 A2, 3 P3 A3);
    (0 P0 A0, 1 P1 A1, 2 P2 A2, 3 P3 A3, 4 P4 A4);
    (0 P0 A0, 1 P1 A1, 2 P2 A2, 3 P3 A3, 4 P4 A4, 5 P5 A5);
    (0 P0 A0, 1 P1 A1, 2 P2 A2, 3 P3 A3, 4 P4 A4, 5 P5 A5, 6 P6 A6);
    (0 P0 A0, 1 P1 A1, 2 P2 A2, 3 P3 A3, 4 P4 A4, 5 P5 A5, 6 P6 A6, 7 P7 A7);
}

fn wrong_number(given: usize, expected: usize) -> Failure {
    let text = format!("{given} arguments were passed, but it has {expected} parameters after the worker");
    Failure::new(FailureKind::InvalidArgument, text)
}

/// Returns a function that adds the position of the argument to a failure's message.
fn of_argument(number: usize, count: usize) -> impl FnOnce(Failure) -> Failure {
    move |failure| Failure::new(failure.kind, format!("argument {} of {count} {}", number + 1, failure.text))
}
