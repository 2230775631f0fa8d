//! The end of the main function of a program.

use distribute_base::Error;
use distribute_log::info_or_stderr;
use std::any::Any;
use std::error::Error as StdError;

type Boxed = Box<dyn StdError>;
type SharedBox = Box<dyn StdError + Send + Sync>;

/// Exits with code 0 if `result` is [`Error::UnusedSpare`], because a spare that was not needed has nothing to do. The
/// error may also be boxed, or the source of another error. Otherwise returns `result`.
///
/// `#[distribute::main]` calls this with the result of `main`.
#[doc(hidden)]
pub fn end_main<T, E: 'static>(result: Result<T, E>) -> Result<T, E> {
    if let Err(error) = &result
        && let Some(unused) = unused_spare(error)
    {
        info_or_stderr(|| tracing::info!("{unused}"));
        std::process::exit(0);
    }
    result
}

/// Returns the [`Error::UnusedSpare`] that is `error` or one of its sources. Returns `None` if there is none, or if
/// `error` is neither an [`Error`] nor a boxed error.
fn unused_spare(error: &dyn Any) -> Option<&Error> {
    let first: &(dyn StdError + 'static) = if let Some(error) = error.downcast_ref::<Error>() {
        error
    } else if let Some(error) = error.downcast_ref::<Boxed>() {
        &**error
    } else {
        &**error.downcast_ref::<SharedBox>()?
    };
    Error::unused_spare(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unused_spare_ends_the_process() {
        let unused = || Error::UnusedSpare { operation: "Training::new" };
        assert!(unused_spare(&unused()).is_some());
        assert!(unused_spare(&Error::other(unused())).is_some());
        assert!(unused_spare(&Boxed::from(unused())).is_some());
        assert!(unused_spare(&SharedBox::from(unused())).is_some());
        assert!(unused_spare(&Error::other("no such file")).is_none());
        assert!(unused_spare(&"no error of the library").is_none());
        assert!(end_main(Err::<(), _>(Error::other("no such file"))).is_err());
        assert!(end_main(Ok::<_, Error>(3)).is_ok_and(|value| value == 3));
    }
}
