//! The report of the runner: how many cases of each area passed and failed.

use super::verdict::Verdict;
use std::collections::BTreeMap;

/// The numbers of passed and failed cases, by area, and the cases that differences cover.
#[derive(Default)]
pub struct Report {
    areas: BTreeMap<String, (usize, usize)>,
    differences: BTreeMap<&'static str, Vec<String>>,
}

impl Report {
    pub fn add(&mut self, area: &str, id: &str, verdict: Verdict) {
        let (passed, failed) = self.areas.entry(area.to_string()).or_default();
        match verdict {
            Verdict::Passed => *passed += 1,
            Verdict::Difference(rule) => {
                *passed += 1;
                self.differences.entry(rule).or_default().push(id.to_string());
            }
            Verdict::Failed(why) => {
                *failed += 1;
                println!("FAILED {id}: {why}");
            }
        }
    }

    pub fn passed(&self) -> bool {
        self.totals().1 == 0
    }

    fn totals(&self) -> (usize, usize) {
        self.areas.values().fold((0, 0), |(a, b), (passed, failed)| (a + passed, b + failed))
    }

    /// Prints the numbers. With `each`, also prints every case that a difference covers.
    pub fn print(&self, each: bool) {
        for (area, (passed, failed)) in &self.areas {
            println!("{area}: {passed} passed, {failed} failed");
        }
        for (rule, ids) in &self.differences {
            println!("difference {rule}: {} cases", ids.len());
            ids.iter().filter(|_| each).for_each(|id| println!("  {id}"));
        }
        let (passed, failed) = self.totals();
        let result = if failed == 0 { "ok" } else { "FAILED" };
        println!("test result: {result}. {passed} passed; {failed} failed");
    }
}
