//! Summaries of several workers.

use crate::multi_worker::on_workers;

// STR-7
#[test]
fn str_7_the_chief_alone_writes_summaries() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let written = on_workers(3, 2, move |strategy| {
        // Other workers' folders may be elsewhere: nothing is written there.
        let chief = strategy.is_chief();
        let summaries =
            strategy.summary_writer(if chief { run.clone() } else { "/nowhere/at/all".into() })?;
        let loss = strategy.run((), |ctx, ()| {
            let sum = ctx.all_reduce(distribute::ReduceOp::Sum, 1f64)?;
            summaries.scalar("sum", sum, ctx.step())?;
            Ok(sum)
        })?;
        summaries.scalar("between", loss.values()[0], 1)?;
        let written = summaries.path().is_some();
        summaries.close()?;
        Ok(written)
    });
    assert_eq!(written, [true, false, false]);
    assert_eq!(std::fs::read_dir(folder.path().join("run")).unwrap().count(), 1);
}
