//! The names that optimizers of TensorFlow and Keras give to the slots of a variable.

use crate::{ObjectPath, TfCheckpoint};

/// The slots of an update rule, with their names in this project, Keras and TensorFlow 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    slots: &'static [Slot],
    /// The name that TensorFlow 1 appends to a variable's name for its first slot. Further slots also get a number.
    tf1: &'static str,
}

/// The names of a slot in this project and in Keras.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The name of the slot in this project.
    pub(crate) here: &'static str,
    /// The names of the slot in Keras, the latest first.
    keras: &'static [&'static str],
}

const fn slot(here: &'static str, keras: &'static [&'static str]) -> Slot {
    Slot { here, keras }
}

impl Rule {
    /// Returns the rule of this name, if its slots have the same meaning in TensorFlow.
    pub(crate) fn of(name: &str) -> Option<Self> {
        const ADAM: &[Slot] = &[slot("m", &["momentum", "m"]), slot("v", &["velocity", "v"])];
        const ACCUMULATOR: Slot = slot("accum", &["accumulator"]);
        let (tf1, slots): (_, &[Slot]) = match name {
            "adam" | "adamw" => ("Adam", ADAM),
            "adagrad" => ("Adagrad", &[ACCUMULATOR]),
            "ftrl" => ("Ftrl", const { &[ACCUMULATOR, slot("linear", &["linear"])] }),
            "momentum" => ("Momentum", const { &[slot("accum", &[])] }),
            "sgd" => ("", &[]),
            _ => return None,
        };
        Some(Self { slots, tf1 })
    }

    pub(crate) fn slots(self) -> &'static [Slot] {
        self.slots
    }
}

/// Returns the key of slot `at` of a rule for the variable with the key `variable`; `None` if there is none.
/// `optimizer` is the path of an optimizer, or the name of its first slot in TensorFlow 1. Without it, the checkpoint
/// must have only one such slot.
///
/// # Errors
/// Returns the keys of all slots that may be meant if there are several.
pub(crate) fn slot_key(
    checkpoint: &TfCheckpoint,
    variable: &str,
    rule: Rule,
    at: usize,
    optimizer: Option<&str>,
) -> Result<Option<String>, Vec<String>> {
    let Some(slot) = rule.slots.get(at) else { return Ok(None) };
    let one = |mut keys: Vec<String>| {
        keys.sort_unstable();
        keys.dedup();
        if keys.len() > 1 { Err(keys) } else { Ok(keys.pop()) }
    };
    let of_tf1 = one(tf1_keys(checkpoint, variable, rule, at, optimizer))?;
    if of_tf1.is_some() {
        return Ok(of_tf1);
    }
    let graph = checkpoint.graph();
    // Optimizers before Keras 2.11 are objects that list their slots.
    let listed = graph.slots(variable, optimizer).filter(|(name, _)| slot.keras.contains(name));
    let listed = one(listed.map(|(_, key)| key.to_string()).collect())?;
    if listed.is_some() {
        return Ok(listed);
    }
    // Later optimizers have variables whose names contain the name of the trained variable.
    let Some(path) = graph.paths.iter().find(|path| path.key == variable) else { return Ok(None) };
    let full_name = &path.full_name;
    let joined = full_name.replace('/', "_");
    for kind in slot.keras {
        let (last, inner) = (format!("/{joined}_{kind}"), format!("/{kind}/{full_name}"));
        let is_of = |path: &ObjectPath| {
            let within =
                |text: &str, of: &str| text.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'));
            (path.full_name.ends_with(&last) || path.full_name.ends_with(&inner))
                && optimizer.is_none_or(|of| within(&path.path, of) || within(&path.key, of))
        };
        let found = graph.paths.iter().filter(|path| is_of(path));
        if let Some(key) = one(found.map(|path| path.key.clone()).collect())? {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Returns the keys of a slot that TensorFlow 1 has saved. In TensorFlow 1, the slots that optimizers of the same name
/// keep for a variable are numbered: `Adam` and `Adam_1` belong to the first optimizer, `Adam_2` and `Adam_3` to the
/// second.
fn tf1_keys(
    checkpoint: &TfCheckpoint,
    variable: &str,
    rule: Rule,
    at: usize,
    optimizer: Option<&str>,
) -> Vec<String> {
    let (name, first) = optimizer.map_or((rule.tf1, 0), numbered);
    let key = |number: usize| match number {
        0 => format!("{variable}/{name}"),
        number => format!("{variable}/{name}_{number}"),
    };
    let optimizers = if optimizer.is_some() { 1 } else { usize::MAX };
    let keys = (first.saturating_add(at)..).step_by(rule.slots.len().max(1)).take(optimizers).map(key);
    keys.take_while(|key| checkpoint.contains(key)).collect()
}

/// Returns a name without the number at its end, and the number, which is 0 if it has none.
fn numbered(name: &str) -> (&str, usize) {
    let split = name.rsplit_once('_').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    split.unwrap_or((name, 0))
}
