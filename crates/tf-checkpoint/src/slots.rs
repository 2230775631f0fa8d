//! The names that optimizers of TensorFlow and Keras give to the slots of a variable.

use crate::TfCheckpoint;

/// An update rule, by its name in `distribute`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule(&'static [Slot]);

/// A slot, by its names here and there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The name of the slot here.
    pub(crate) here: &'static str,
    /// The name that TensorFlow 1 appends to the variable's name.
    tf1: &'static str,
    /// The names in Keras, the latest first.
    keras: &'static [&'static str],
}

const fn slot(here: &'static str, tf1: &'static str, keras: &'static [&'static str]) -> Slot {
    Slot { here, tf1, keras }
}

impl Rule {
    /// Returns the rule of this name, if its slots have the same meaning in TensorFlow.
    pub(crate) fn of(name: &str) -> Option<Self> {
        const ADAM: &[Slot] =
            &[slot("m", "Adam", &["momentum", "m"]), slot("v", "Adam_1", &["velocity", "v"])];
        const ACCUMULATOR: &[&str] = &["accumulator"];
        Some(Self(match name {
            "adam" | "adamw" => ADAM,
            "adagrad" => const { &[slot("accum", "Adagrad", ACCUMULATOR)] },
            "ftrl" => const { &[slot("accum", "Ftrl", ACCUMULATOR), slot("linear", "Ftrl_1", &["linear"])] },
            "momentum" => const { &[slot("accum", "Momentum", &[])] },
            "sgd" => &[],
            _ => return None,
        }))
    }

    pub(crate) fn slots(self) -> &'static [Slot] {
        self.0
    }
}

/// Returns the key of a slot of the variable with the key `variable`; `None` if there is none.
pub(crate) fn slot_key(checkpoint: &TfCheckpoint, variable: &str, slot: &Slot) -> Option<String> {
    let tf1 = format!("{variable}/{}", slot.tf1);
    if checkpoint.contains(&tf1) {
        return Some(tf1);
    }
    let graph = checkpoint.graph();
    // Optimizers before Keras 2.11 are objects that list their slots.
    if let Some((_, key)) = graph.slots(variable).find(|(name, _)| slot.keras.contains(name)) {
        return Some(key.to_string());
    }
    // Later ones have variables whose names contain that of the variable.
    let (full_name, _) = graph.names().find(|(_, key)| *key == variable)?;
    let joined = full_name.replace('/', "_");
    let named = |kind: &str| {
        let (last, path) = (format!("/{joined}_{kind}"), format!("/{kind}/{full_name}"));
        let mut found = graph.names().filter(|(name, _)| name.ends_with(&last) || name.ends_with(&path));
        let first = found.next()?;
        // Two optimizers with slots of the same name leave it open which is meant.
        found.all(|other| other.1 == first.1).then(|| first.1.to_string())
    };
    slot.keras.iter().find_map(|kind| named(kind))
}
