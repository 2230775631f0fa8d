//! The packages as numbers: words, sections, and dependencies.

use crate::graph::Graph;
use candle_core::{Device, Tensor};
use distribute::Nest;
use distribute::data::Dataset;
use distribute::data::csv::{ColumnType, Csv};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The maximum number of words of a package. Few packages have more.
const LONGEST: usize = 32;

/// All packages.
pub struct Packages {
    /// The `LONGEST` word numbers of each package, padded with [`padding`](Self::padding).
    words: Vec<u32>,
    /// The number of words in training packages. Words that are only in other packages have no number.
    pub vocabulary: usize,
    sections: Vec<u32>,
    pub section_names: Vec<String>,
    graph: Graph,
    /// The packages for training. A random fifth, chosen with a fixed seed, is for testing.
    pub training: Vec<u32>,
    pub held_out: Vec<u32>,
}

/// A batch of packages on a replica.
#[derive(Nest)]
pub struct Batch {
    /// The words, `[n, LONGEST]`.
    pub words: Tensor,
    /// The neighbours of each package, `[n, FIRST]`: see [`Graph::sample`].
    pub first: Tensor,
    /// The neighbours of each package in `first`, `[n, FIRST, SECOND]`.
    pub second: Tensor,
    /// The sections, `[n]`.
    pub sections: Tensor,
}

impl Packages {
    /// Returns the packages, which the first call in this process reads.
    pub fn share() -> distribute::Result<Arc<Self>> {
        static ALL: OnceLock<Arc<Packages>> = OnceLock::new();
        static READING: Mutex<()> = Mutex::new(());
        let _one = READING.lock().unwrap_or_else(PoisonError::into_inner);
        match ALL.get() {
            Some(all) => Ok(all.clone()),
            None => {
                let read = Self::read()?;
                Ok(ALL.get_or_init(|| read).clone())
            }
        }
    }

    fn read() -> distribute::Result<Arc<Self>> {
        const SPLIT_SEED: u64 = 0;
        let file = include_bytes!("../data/debian-packages.tsv.gz");
        let columns = ["package", "section", "description", "depends"].map(|name| (name, ColumnType::Text));
        let table = Csv::bytes("debian-packages.tsv.gz", file).delimiter(b'\t').columns(columns)?.load()?;
        let column = |name: &str| -> Vec<String> {
            let texts = table[name].as_slice::<Vec<u8>>().unwrap_or_default();
            texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
        };
        let [names, sections, descriptions, depends] =
            ["package", "section", "description", "depends"].map(column);
        let texts: Vec<Vec<Word>> =
            names.iter().zip(&descriptions).map(|(name, description)| words(name, description)).collect();

        let count = names.len();
        let order = Dataset::range(count as i64).shuffle(count, SPLIT_SEED).load()?;
        let order: Vec<u32> = order.as_slice::<i64>().unwrap_or_default().iter().map(|i| *i as u32).collect();
        let (held_out, training) = order.split_at(count / 5);

        let mut numbers = HashMap::new();
        for package in training {
            for word in &texts[*package as usize] {
                let next = numbers.len() as u32;
                numbers.entry(word).or_insert(next);
            }
        }
        let padding = numbers.len() as u32;
        let of_text = |text: &Vec<Word>| {
            let known = text.iter().filter_map(|word| numbers.get(word).copied());
            known.chain(std::iter::repeat(padding)).take(LONGEST).collect::<Vec<_>>()
        };
        let mut section_names = sections.clone();
        section_names.sort();
        section_names.dedup();
        let number = |section: &String| section_names.binary_search(section).unwrap_or(0) as u32;
        Ok(Arc::new(Self {
            words: texts.iter().flat_map(of_text).collect(),
            vocabulary: numbers.len(),
            sections: sections.iter().map(number).collect(),
            graph: Graph::new(&names, &depends),
            section_names,
            training: training.to_vec(),
            held_out: held_out.to_vec(),
        }))
    }

    /// Returns the number that pads `words`.
    pub fn padding(&self) -> usize {
        self.vocabulary
    }

    pub fn count(&self) -> usize {
        self.sections.len()
    }

    /// Returns a batch of the given packages. The neighbours are sampled with `seed`.
    pub fn batch(&self, packages: &[u32], seed: u64) -> candle_core::Result<Batch> {
        let (n, cpu) = (packages.len(), &Device::Cpu);
        let mut words = Vec::with_capacity(n * LONGEST);
        for package in packages {
            words.extend_from_slice(&self.words[*package as usize * LONGEST..][..LONGEST]);
        }
        let (first, second) = self.graph.sample(packages, seed);
        let sections: Vec<u32> = packages.iter().map(|package| self.sections[*package as usize]).collect();
        Ok(Batch {
            words: Tensor::from_vec(words, (n, LONGEST), cpu)?,
            first: Tensor::from_vec(first, (n, Graph::FIRST), cpu)?,
            second: Tensor::from_vec(second, (n, Graph::FIRST, Graph::SECOND), cpu)?,
            sections: Tensor::from_vec(sections, n, cpu)?,
        })
    }

    /// Returns batches of the given packages, in an order that `seed` determines. They are made while replicas compute.
    pub fn batches(
        self: &Arc<Self>,
        packages: &[u32],
        size: usize,
        seed: u64,
    ) -> distribute::Result<Dataset<Batch>> {
        let (packages, all) = (Tensor::new(packages, &Device::Cpu)?, self.clone());
        let count = packages.dim(0)?;
        let batches = Dataset::from_slices(packages)?.shuffle(count, seed).batch(size);
        Ok(batches.try_map(move |packages| all.batch(&packages.to_vec1()?, seed)).prefetch(4))
    }
}

/// A word and where it is: the first word of a name has another meaning than the same word in a description.
type Word = (Place, String);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Start,
    Name,
    Description,
}

/// Returns the words of a package in lower case, which consist of letters and digits: the first word of the name, all
/// words of the name, and those of the description.
fn words(name: &str, description: &str) -> Vec<Word> {
    fn of(place: Place, text: &str) -> impl Iterator<Item = Word> {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(move |word| (place, word.to_lowercase()))
    }
    let name = of(Place::Start, name).take(1).chain(of(Place::Name, name));
    name.chain(of(Place::Description, description)).collect()
}
