//! [`CsvLog`]: a file with the results of each epoch.

use super::super::{Epoch, History};
use super::{Callback, CallbackContext};
use distribute_base::{Error, Result};
use distribute_files::WholeFile;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A callback that writes the results of all epochs to a file of comma-separated values.
///
/// The columns are `epoch`, `steps`, `loss`, `validation_loss` and `learning_rate`. The value of `validation_loss` is
/// empty for an epoch without a validation. The chief replaces the file atomically after each epoch. The file always
/// contains all epochs of the [`History`], including those before training was resumed.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::runner::{CsvLog, Trainer};
/// let trainer = Trainer::new(8).epochs(3).callback(CsvLog::new("training.csv"));
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.callbacks.CSVLogger")]
#[doc(alias = "CSVLogger")]
#[derive(Clone, Debug)]
pub struct CsvLog {
    path: PathBuf,
}

impl CsvLog {
    /// Creates a log in the file `path`. An existing file is replaced after the first epoch.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_path_buf() }
    }
}

impl Callback for CsvLog {
    fn on_epoch(&self, context: &CallbackContext<'_>, _epoch: &Epoch) -> Result<ControlFlow<()>> {
        if context.is_chief() {
            let written = WholeFile::write(&self.path, table(context.history()).as_bytes());
            let operation = || format!("writing {}", self.path.display());
            written.map_err(|source| Error::Io { operation: operation(), source })?;
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the content of the file. Each number has the fewest digits that are parsed as the same f64.
fn table(history: &History) -> String {
    let mut text = "epoch,steps,loss,validation_loss,learning_rate\n".to_owned();
    for Epoch { epoch, steps, loss, validation_loss, learning_rate } in &history.epochs {
        let validation_loss = validation_loss.map(|loss| loss.to_string()).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{epoch},{steps},{loss},{validation_loss},{learning_rate}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_is_a_line_whose_numbers_are_read_back_to_the_bit() {
        let epoch = |epoch, loss, validation_loss| Epoch {
            epoch,
            steps: 8,
            loss,
            validation_loss,
            learning_rate: 0.001,
        };
        let epochs = vec![epoch(0, 0.1 + 0.2, Some(1e-300)), epoch(1, f64::NAN, None)];
        let text = table(&History { epochs, ..Default::default() });
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines[0], ["epoch", "steps", "loss", "validation_loss", "learning_rate"]);
        assert_eq!(lines[1][..2], ["0", "8"]);
        assert_eq!(
            lines[1][2..].iter().map(|n| n.parse().unwrap()).collect::<Vec<f64>>(),
            [0.1 + 0.2, 1e-300, 0.001]
        );
        assert_eq!(lines[2], ["1", "8", "NaN", "", "0.001"]);
        assert!(text.ends_with('\n') && lines.len() == 3);
    }
}
