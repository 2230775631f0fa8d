//! [`History`]: the results of a training run by epoch, and their format in a backup.

use distribute_checkpoint::Value;

/// The results of one epoch.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Epoch {
    /// The index of the epoch, counted from 0.
    pub epoch: usize,
    /// The number of steps in the epoch.
    pub steps: usize,
    /// The mean of the losses of all steps. The loss of a step is the mean over the global batch.
    pub loss: f64,
    /// The mean loss over all validation examples; `None` if the epoch did not end with a validation.
    pub validation_loss: Option<f64>,
    /// The learning rate of the last step or, if the optimizer has a schedule, of the next step.
    pub learning_rate: f64,
}

/// Compares losses and rates by their bits, so that NaN equals itself.
impl PartialEq for Epoch {
    fn eq(&self, other: &Self) -> bool {
        let bits = |epoch: &Self| {
            let losses = (epoch.loss.to_bits(), epoch.validation_loss.map(f64::to_bits));
            (epoch.epoch, epoch.steps, losses, epoch.learning_rate.to_bits())
        };
        bits(self) == bits(other)
    }
}

/// The reason why a training run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// All epochs are complete.
    #[default]
    Epochs,
    /// The validation loss has not improved for [the given number of validations](super::Trainer::patience).
    Patience,
    /// A callback returned [`ControlFlow::Break`](std::ops::ControlFlow::Break).
    Callback,
    /// A worker [received a notice](super::Trainer::save_on_notice) that its process will be killed soon. The training
    /// run is incomplete. Start it again to resume, unless only this worker has left and the others continue.
    Notice,
}

impl End {
    /// Returns the name under which a backup stores this reason; `None` if it is not stored.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            End::Patience => Some("patience"),
            End::Callback => Some("callback"),
            End::Epochs | End::Notice => None,
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        [End::Patience, End::Callback].into_iter().find(|end| end.name() == Some(name))
    }
}

/// The epochs of a training run, including those before an interruption.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[doc(alias = "tf.keras.callbacks.History")]
pub struct History {
    /// The epochs, in order.
    pub epochs: Vec<Epoch>,
    /// The reason why the run ended after these epochs. Before the run has ended, this is [`End::Epochs`].
    pub end: End,
}

impl History {
    /// Returns the first epoch with the lowest validation loss; `None` if there is no validation loss other than NaN.
    pub fn best(&self) -> Option<&Epoch> {
        let validated = self.epochs.iter().filter_map(|epoch| Some((epoch, epoch.validation_loss?)));
        let best = validated
            .filter(|(_, loss)| !loss.is_nan())
            .reduce(|best, other| if other.1 < best.1 { other } else { best });
        best.map(|(epoch, _)| epoch)
    }

    /// Returns the number of validations since the validation loss last improved by more than `min_delta`.
    #[doc(alias = "tf.keras.callbacks.EarlyStopping")]
    #[doc(alias = "EarlyStopping")]
    pub(super) fn validations_since_better(&self, min_delta: f64) -> usize {
        let (mut least, mut since) = (f64::INFINITY, 0);
        for loss in self.epochs.iter().filter_map(|epoch| epoch.validation_loss) {
            // False for NaN. Infinity minus any number is infinity.
            (least, since) = if loss < least - min_delta { (loss, 0) } else { (least, since + 1) };
        }
        since
    }
}

/// Converts epochs to checkpoint metadata. Losses are stored as the bits of an f64, because JSON cannot represent NaN
/// and may lose digits.
pub(super) fn to_value(epochs: &[Epoch]) -> Value {
    let each = epochs.iter().map(|epoch| {
        let validation = epoch.validation_loss.map(f64::to_bits);
        Value::from(vec![
            Value::from(epoch.steps),
            Value::from(epoch.loss.to_bits()),
            validation.map_or(Value::Null, Value::from),
            Value::from(epoch.learning_rate.to_bits()),
        ])
    });
    Value::from(each.collect::<Vec<_>>())
}

/// Converts metadata that was created by [`to_value`] back to epochs. Returns `None` for any other metadata.
pub(super) fn from_value(value: &Value) -> Option<Vec<Epoch>> {
    let each = value.as_array()?.iter().enumerate().map(|(epoch, stored)| {
        let [steps, loss, validation, rate] = &stored.as_array()?[..] else { return None };
        let validation_loss = match validation {
            Value::Null => None,
            bits => Some(f64::from_bits(bits.as_u64()?)),
        };
        let steps = usize::try_from(steps.as_u64()?).ok()?;
        let [loss, learning_rate] = [loss, rate].map(Value::as_u64);
        let (loss, learning_rate) = (f64::from_bits(loss?), f64::from_bits(learning_rate?));
        Some(Epoch { epoch, steps, loss, validation_loss, learning_rate })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(epoch: usize, loss: f64, validation_loss: Option<f64>) -> Epoch {
        Epoch { epoch, steps: 3, loss, validation_loss, learning_rate: 0.1 }
    }

    #[test]
    fn a_history_is_read_back_to_the_bit_and_nothing_else_is_read() {
        let epochs = vec![epoch(0, 0.1 + 0.2, Some(-0.)), epoch(1, f64::NAN, None)];
        let text = to_value(&epochs).to_string();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(from_value(&value), Some(epochs));
        for wrong in
            ["{}", "[1]", "[[1, 2, 3]]", "[[1, 2, \"x\", 4]]", "[[-1, 2, 3, 4]]", "[[1, 2, 3, null]]"]
        {
            assert_eq!(from_value(&serde_json::from_str(wrong).unwrap()), None, "{wrong}");
        }
    }

    fn with(losses: &[f64]) -> History {
        // Every other epoch has no validation.
        let validated = losses.iter().flat_map(|loss| [None, Some(*loss)]);
        let epochs = validated.enumerate().map(|(number, loss)| epoch(number, 1., loss)).collect();
        History { epochs, ..Default::default() }
    }

    #[test]
    fn a_validation_counts_as_better_by_more_than_the_least_difference() {
        const NAN: f64 = f64::NAN;
        for (losses, min_delta, since, best) in [
            (&[][..], 0., 0, None),
            (&[NAN, NAN], 0., 2, None),
            (&[3., 2., 1.], 0., 0, Some(5)),
            (&[3., 2., 2., NAN], 0., 2, Some(3)),
            // Slow, but finally better than the last improvement.
            (&[3., 2.8, 2.6, 2.4], 0.5, 0, Some(7)),
            (&[3., 2.8, 2.6], 0.5, 2, Some(5)),
            (&[1., 5., 0.5, 0.6], 0., 1, Some(5)),
            (&[f64::INFINITY, 1.], 0., 0, Some(3)),
        ] {
            let history = with(losses);
            assert_eq!(history.validations_since_better(min_delta), since, "{losses:?}");
            assert_eq!(history.best().map(|epoch| epoch.epoch), best, "{losses:?}");
        }
    }
}
