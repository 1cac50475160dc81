//! Loads bar files without options and prints what was found and how they would be split.
//!
//! `cargo run -p bars --example check_file -- FILE ...`

use std::env;
use std::path::PathBuf;
use std::time::Instant;

use bars::{BarError, LoadOptions, PrepareOptions, load, prepare};

fn main() -> Result<(), BarError> {
    for path in env::args_os().skip(1).map(PathBuf::from) {
        let start = Instant::now();
        let loaded = load(&path, &LoadOptions::default())?;
        print!("{}", loaded.report);
        let prepared = prepare(&loaded, &PrepareOptions::default())?;
        print!("{}", prepared.summary);
        println!("  took        {:.0} ms\n", start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}
