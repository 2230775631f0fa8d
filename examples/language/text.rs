//! The descriptions of Debian's packages, as one long text of characters, and the loss of a bigram model.

use candle_core::{Device, Tensor};
use distribute::data::Dataset;
use distribute::data::csv::{ColumnType, Csv};
use std::collections::HashMap;

/// The token between two descriptions.
pub const END: u32 = 0;
/// The token of characters that are not in the training text.
const UNKNOWN: u32 = 1;

/// A text as tokens, one for each character.
pub struct Text {
    /// The character of each token. [`END`] and the unknown token have the characters that are printed for them.
    characters: Vec<char>,
    training: Vec<u32>,
    held_out: Vec<u32>,
}

impl Text {
    /// Reads the descriptions. Every tenth one, in a random order with a fixed seed, is held out.
    pub fn read() -> distribute::Result<Self> {
        const SPLIT_SEED: u64 = 0;
        let file = include_bytes!("../data/debian-packages.tsv.gz");
        let columns = [("description", ColumnType::Text)];
        let table = Csv::bytes("debian-packages.tsv.gz", file).delimiter(b'\t').columns(columns)?.load()?;
        let lines = table["description"].as_slice::<Vec<u8>>().unwrap_or_default();
        let order = Dataset::range(lines.len() as i64).shuffle(lines.len(), SPLIT_SEED).load()?;
        let order: Vec<usize> =
            order.as_slice::<i64>().unwrap_or_default().iter().map(|i| *i as usize).collect();
        let (held_out, training) = order.split_at(lines.len() / 10);
        let line = |i: &usize| String::from_utf8_lossy(&lines[*i]);

        let mut numbers: HashMap<char, u32> = HashMap::new();
        let mut characters = vec!['\n', '\u{fffd}'];
        for c in training.iter().flat_map(|i| line(i).chars().collect::<Vec<_>>()) {
            numbers.entry(c).or_insert_with(|| {
                characters.push(c);
                characters.len() as u32 - 1
            });
        }
        let tokens = |lines: &[usize]| {
            let of_line = |i| {
                let line: Vec<_> =
                    line(i).chars().map(|c| numbers.get(&c).copied().unwrap_or(UNKNOWN)).collect();
                std::iter::once(END).chain(line)
            };
            lines.iter().flat_map(of_line).chain([END]).collect::<Vec<u32>>()
        };
        Ok(Self { training: tokens(training), held_out: tokens(held_out), characters })
    }

    pub fn vocabulary(&self) -> usize {
        self.characters.len()
    }

    pub fn character(&self, token: u32) -> char {
        self.characters.get(token as usize).copied().unwrap_or('\u{fffd}')
    }

    /// Returns the training text in pieces `[n, length + 1]`. Each begins with the last token of the previous
    /// piece, so a piece has the next token for each of its first `length` tokens.
    pub fn training(&self, length: usize) -> distribute::Result<Tensor> {
        pieces(&self.training, length)
    }

    pub fn held_out(&self, length: usize) -> distribute::Result<Tensor> {
        pieces(&self.held_out, length)
    }

    /// Returns the mean loss of a bigram model on the held-out pieces, in nats per character. Its
    /// probabilities are the pair counts in the training text, with a tenth added to each.
    pub fn bigram_loss(&self, length: usize) -> distribute::Result<f64> {
        const ADDED: f64 = 0.1;
        let size = self.vocabulary();
        let mut counts = vec![ADDED; size * size];
        for pair in self.training.windows(2) {
            counts[pair[0] as usize * size + pair[1] as usize] += 1.;
        }
        let totals: Vec<f64> = counts.chunks_exact(size).map(|row| row.iter().sum()).collect();
        let (mut loss, mut n) = (0., 0);
        for piece in pieces(&self.held_out, length)?.to_vec2::<u32>()? {
            for pair in piece.windows(2) {
                let (first, next) = (pair[0] as usize, pair[1] as usize);
                loss -= (counts[first * size + next] / totals[first]).ln();
                n += 1;
            }
        }
        Ok(loss / f64::from(n))
    }
}

fn pieces(tokens: &[u32], length: usize) -> distribute::Result<Tensor> {
    let count = tokens.len().saturating_sub(1) / length;
    let piece = |i: usize| tokens[i * length..][..=length].iter().copied();
    let all: Vec<u32> = (0..count).flat_map(piece).collect();
    Ok(Tensor::from_vec(all, (count, length + 1), &Device::Cpu)?)
}
