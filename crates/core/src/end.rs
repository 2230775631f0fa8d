//! The end of the main function of a program.

use distribute_base::Error;
use distribute_log::info_or_stderr;
use std::any::Any;
use std::error::Error as StdError;

type Boxed = Box<dyn StdError>;
type SharedBox = Box<dyn StdError + Send + Sync>;

/// Exits with 0 if the result of the main function is [`Error::UnusedSpare`], because nothing is left to do. Otherwise
/// returns the result. `#[distribute::main]` calls this. The error may also be the source of another one, or be in a
/// box.
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

/// Returns the error of an unused spare among the sources of an error, if it has a type that is recognized.
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
