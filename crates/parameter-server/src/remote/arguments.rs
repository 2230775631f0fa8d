//! The match of arguments and parameters, and their encoding.

use super::handles::PerWorker;
use super::kept::Kept;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_coordinator::{Argument, Failure, FailureKind, ResourceId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A parameter `&T`: a value that the worker keeps.
#[derive(Debug)]
pub struct Resource<T>(PhantomData<fn() -> T>);

/// A parameter `T`: a value that is sent with the call.
#[derive(Debug)]
pub struct Value<T>(PhantomData<fn() -> T>);

/// A parameter of a remote function.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a remote function",
    note = "a `&T` (`Resource<T>`) is what a worker keeps: T is `Send + Sync + 'static`",
    note = "any other `T` (`Value<T>`) travels: it has serde's `Serialize` and `Deserialize`"
)]
pub trait Param {
    /// The form in which a worker holds the argument during the call.
    type Held;

    #[doc(hidden)]
    fn decode(argument: &Argument, kept: &dyn Lookup) -> Result<Self::Held, Failure>;
}

/// All parameters of a remote function, in a tuple.
pub trait Params {
    /// The form in which a worker holds the arguments during the call.
    type Held;

    #[doc(hidden)]
    fn decode(arguments: &[Argument], kept: &dyn Lookup) -> Result<Self::Held, Failure>;
}

/// The values that a worker keeps.
#[doc(hidden)]
pub trait Lookup {
    fn kept(&self, id: ResourceId) -> Option<Kept>;
}

impl<T: Send + Sync + 'static> Param for Resource<T> {
    type Held = Arc<T>;

    fn decode(argument: &Argument, kept: &dyn Lookup) -> Result<Arc<T>, Failure> {
        let invalid = |text: String| Failure::new(FailureKind::InvalidArgument, text);
        let expected = std::any::type_name::<T>();
        let Argument::Resource(id) = argument else {
            return Err(invalid(format!("is a value, where a {expected} is expected that the worker keeps")));
        };
        let Some(kept) = kept.kept(*id) else {
            let text = format!("is {id}, which this worker has not made, or has let go of");
            return Err(Failure::new(FailureKind::Resource, text));
        };
        let found = kept.name;
        kept.value
            .downcast()
            .map_err(|_| invalid(format!("is {id}, a {found}, where a {expected} is expected")))
    }
}

impl<T: Serialize + DeserializeOwned> Param for Value<T> {
    type Held = T;

    fn decode(argument: &Argument, _: &dyn Lookup) -> Result<T, Failure> {
        let expected = std::any::type_name::<T>();
        let text = match argument {
            Argument::Resource(id) => format!("is {id}, where a value is expected, a {expected}"),
            Argument::Value(bytes) => match postcard::take_from_bytes(bytes) {
                Ok((value, [])) => return Ok(value),
                Ok((_, more)) => {
                    format!("has {} bytes more than the {expected} that is expected", more.len())
                }
                Err(error) => format!("is {} bytes, of no {expected}: {error}", bytes.len()),
            },
        };
        Err(Failure::new(FailureKind::InvalidArgument, text))
    }
}

/// The identity of a coordinator in this process, by which its arguments are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender(u64);

impl Sender {
    /// Creates a new identity, distinct from all others of this process.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self(NUMBERS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A value that can be passed for a parameter of a remote function.
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
/// The result of another call is not available before that call has ended:
///
/// ```compile_fail,E0277
/// # use distribute::remote::*;
/// # #[distribute::remote]
/// fn twice(worker: &WorkerContext, x: f32) -> distribute::Result<f32> {
///     Ok(2. * x)
/// }
/// # fn call(x: RemoteValue<f32>) {
/// remote_call(twice, (x,)); // fetch() it, and give the value
/// # }
/// # fn remote_call<F: RemoteFunction>(_: F, _: impl Args<F::Params>) {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not fit the parameter `{P}` of a remote function",
    label = "this argument",
    note = "a parameter `&T` (`Resource<T>`) takes a `&PerWorker<T>`: what create_per_worker_value and create_per_worker_dataset give",
    note = "any other parameter `T` (`Value<T>`) takes a `T`; in place of a `RemoteValue<T>`, fetch() it and give the value"
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
    note = "give as many as it has behind the worker, in a tuple: `(&model, 0.5)`, `(&model,)` for one, `()` for none"
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
            type Held = ($($P::Held,)*);

            fn decode(arguments: &[Argument], kept: &dyn Lookup) -> Result<Self::Held, Failure> {
                const EXPECTED: usize = <[usize]>::len(&[$($number),*]);
                if arguments.len() != EXPECTED {
                    return Err(wrong_number(arguments.len(), EXPECTED));
                }
                let _ = kept;
                Ok(($($P::decode(&arguments[$number], kept).map_err(of_argument($number, EXPECTED))?,)*))
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
    let text = format!("{given} arguments were given, and it has {expected} parameters behind the worker");
    Failure::new(FailureKind::InvalidArgument, text)
}

/// Returns a function that prefixes a failure with the number of the argument.
fn of_argument(number: usize, count: usize) -> impl FnOnce(Failure) -> Failure {
    move |failure| Failure::new(failure.kind, format!("argument {} of {count} {}", number + 1, failure.text))
}
