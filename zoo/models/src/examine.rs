//! Compares the gradients of a model with differences of its loss.

use crate::{Entry, Forward, numbers};
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of variables of a model whose gradients are compared.
const COMPARED: usize = 24;

/// A row of the table.
pub struct Row {
    pub name: String,
    pub variables: String,
    pub result: String,
}

/// Builds the model twice, since what it computes of its variables while it is built has to be of random numbers.
pub fn examine(entry: &Entry, details: bool) -> Row {
    let found = catch_unwind(AssertUnwindSafe(|| Model::new(entry).and_then(|model| model.examine(details))));
    let (variables, result) = match found {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => ("".into(), format!("error: {}", first_line(&error.to_string()))),
        Err(panic) => {
            let text =
                panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            ("".into(), format!("panic: {}", first_line(text.unwrap_or("?"))))
        }
    };
    Row { name: entry.name.into(), variables, result }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().replace('|', "/")
}

pub struct Model<'e> {
    entry: &'e Entry,
    map: VarMap,
    variables: Vec<(String, Var)>,
}

impl<'e> Model<'e> {
    pub fn new(entry: &'e Entry) -> Result<Self> {
        let map = VarMap::new();
        // Creates the variables.
        drop((entry.build)(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?);
        let mut variables: Vec<(String, Var)> = map
            .data()
            .lock()
            .expect("variables")
            .iter()
            .map(|(name, var)| (name.clone(), var.clone()))
            .collect();
        variables.sort_by(|a, b| a.0.cmp(&b.0));
        for (number, (name, var)) in variables.iter().enumerate() {
            var.set(&initial(name, var.dims(), number)?)?;
        }
        Ok(Self { entry, map, variables })
    }

    pub fn build(&self) -> Result<Forward> {
        (self.entry.build)(VarBuilder::from_varmap(&self.map, DType::F32, &Device::Cpu))
    }

    pub fn save(&self, file: &std::path::Path) -> Result<()> {
        self.map.save(file)
    }

    /// The loss of a model that was built again.
    fn value(&self) -> Result<f64> {
        loss(&mut self.build()?)?.to_dtype(DType::F64)?.to_scalar()
    }

    fn examine(&self, details: bool) -> Result<(String, String)> {
        let value = self.value()?;
        if !value.is_finite() {
            candle_core::bail!("the loss is {value}")
        }
        let first = loss(&mut self.build()?)?;
        let store = match distribute::optimizer::backward(&first) {
            Ok(store) => store,
            Err(error) => {
                return Ok((
                    self.variables.len().to_string(),
                    format!("lacks: {}", first_line(&error.to_string())),
                ));
            }
        };
        let (mut right, mut wrong, mut cut, mut unused, mut running) = (0, vec![], vec![], vec![], 0);
        // Of large models some: each comparison takes two losses.
        let each = self.variables.len().div_ceil(COMPARED);
        for (number, (name, var)) in self.variables.iter().enumerate() {
            if name.ends_with("running_mean") || name.ends_with("running_var") {
                running += 1;
                continue;
            }
            match store.get(var) {
                Some(_) if number % each != 0 => right += 1,
                Some(gradient) => match self.compare(var, gradient, value)? {
                    None => right += 1,
                    Some(found) => wrong.push(format!("{name} ({found})")),
                },
                None if self.depends_on(var, value)? => cut.push(name.clone()),
                None => unused.push(name.clone()),
            }
        }
        if details {
            println!(
                "{}: loss {value}; wrong {wrong:#?}; cut off {cut:#?}; unused {unused:?}",
                self.entry.name
            );
        }
        let all = self.variables.len() - running - unused.len();
        let mut result = vec![];
        if right == all && all > 0 {
            result.push("trains".to_string());
        }
        if !cut.is_empty() {
            let rest =
                if wrong.is_empty() { "" } else { "; gradients of what comes before lack their share" };
            result.push(format!("lacks: {} without a gradient{rest}", list(&cut)));
        } else if !wrong.is_empty() {
            result.push(format!("wrong: {}", list(&wrong)));
        }
        if let Some(stale) = self.stale()? {
            result.push(stale.into());
        }
        Ok((format!("{right} of {all}"), result.join("; ")))
    }

    /// Compares the length of a gradient with the slope of the loss along it. Returns both if they differ.
    fn compare(&self, var: &Var, gradient: &Tensor, value: f64) -> Result<Option<String>> {
        let old = var.copy()?;
        let gradient = gradient.to_dtype(DType::F32)?;
        let length = gradient.sqr()?.sum_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?.sqrt();
        let direction = if length > 0. { (&gradient / length)? } else { unit(var.dims())? };
        let mut found = vec![];
        for step in [3e-2, 1e-2, 3e-3, 1e-3] {
            let mut values = [0.; 2];
            for (value, sign) in values.iter_mut().zip([1., -1.]) {
                var.set(&(&old + (&direction * (sign * step))?)?)?;
                *value = self.value()?;
            }
            var.set(&old)?;
            let slope = (values[0] - values[1]) / (2. * step);
            // What f32 cannot tell apart.
            let noise = 2e-6 * (value.abs() + 1.) / step;
            if (slope - length).abs() <= 0.04 * length + noise.min(0.1 * length + 2e-3) {
                return Ok(None);
            }
            found.push(format!("{slope:.5}"));
        }
        Ok(Some(format!("{length:.5}, not {}", found.join(" or "))))
    }

    fn depends_on(&self, var: &Var, value: f64) -> Result<bool> {
        let old = var.copy()?;
        var.set(&(&old + (unit(var.dims())? * 0.5)?)?)?;
        let moved = self.value();
        var.set(&old)?;
        Ok(moved.map_or(true, |moved| moved != value))
    }

    /// Whether a model that was built before its variables changed, and has run, computes the same as one that is built
    /// afterwards.
    fn stale(&self) -> Result<Option<&'static str>> {
        let mut built = self.build()?;
        let first = loss(&mut built)?.to_scalar::<f32>()?;
        let again = loss(&mut built).and_then(|loss| loss.to_scalar::<f32>());
        if !again.is_ok_and(|again| again == first) {
            return Ok(Some("keeps the step before: build it for each step"));
        }
        for (_, var) in &self.variables {
            var.set(&(var.as_detached_tensor() * 1.05)?)?;
        }
        let (old, new) = (loss(&mut built)?.to_scalar::<f32>()?, self.value()? as f32);
        Ok(((old - new).abs() > 1e-5 * new.abs().max(1.))
            .then_some("computes weights when it is built: build it for each step"))
    }
}

fn list(names: &[String]) -> String {
    match names {
        [first, second, third, _, ..] => {
            format!("`{first}`, `{second}`, `{third}` and {} more", names.len() - 3)
        }
        _ => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// A weighted sum of the outputs.
fn loss(forward: &mut Forward) -> Result<Tensor> {
    let y = forward()?.to_dtype(DType::F32)?;
    let n = y.elem_count() as f64;
    (&y * numbers(y.dims()))?.sum_all()? / n.sqrt()
}

fn unit(dims: &[usize]) -> Result<Tensor> {
    let n = numbers(dims);
    let length = n.sqr()?.sum_all()?.to_scalar::<f32>()? as f64;
    n / length.sqrt()
}

/// Weights of norms near 1, biases near 0, matrices that keep the size of what they multiply.
fn initial(name: &str, dims: &[usize], number: usize) -> Result<Tensor> {
    // Another part of the same sequence for each variable.
    let n = dims.iter().product::<usize>();
    let random = numbers(&[n + number * 7]).narrow(0, number * 7, n)?.reshape(dims)?;
    let name = name.to_ascii_lowercase();
    if name.ends_with("running_var") {
        return (random.abs()? * 0.5)? + 0.75;
    }
    if dims.len() >= 2 {
        let fan_in = dims[1..].iter().product::<usize>() as f64;
        // Smaller for convolutions, of which some models add many.
        return random * (if dims.len() == 4 { 0.5 } else { 3. } / fan_in).sqrt();
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    if ["weight", "gamma", "alpha", "scale"].iter().any(|part| last.contains(part)) {
        return (random * 0.2)? + 1.;
    }
    random * 0.2
}
