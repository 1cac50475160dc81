//! Whether there is memory for what a configuration asks for, before it is asked for: a failed allocation would end the
//! program without a word about whose it was, and one that the system grants and cannot keep ends it with a signal.

use std::fs;

/// What needs memory, and what to reduce where there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {what}: {} would be needed and {} of memory are available; reduce {keys}",
    size(*bytes),
    size(*available)
)]
pub struct NoRoom {
    /// What the memory is for.
    pub what: String,
    /// Bytes it needs.
    pub bytes: u64,
    /// Bytes there are.
    pub available: u64,
    /// Keys of the configuration that it grows with.
    pub keys: String,
}

/// Refuses what does not fit into the memory that is available now; where that cannot be found out, nothing.
///
/// # Errors
/// [`NoRoom`] with the numbers and the keys.
pub fn check(what: &str, bytes: u64, keys: &str) -> Result<(), NoRoom> {
    match available() {
        Some(available) if bytes > available => {
            Err(NoRoom { what: what.into(), bytes, available, keys: keys.into() })
        }
        _ => Ok(()),
    }
}

/// Bytes that can be had without swapping, by the system and by the limits of this process' control group.
fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let number = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    [system, group].into_iter().flatten().min()
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes as people say them.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let power = (bytes.ilog2() / 10) as usize;
    format!("{:.1} {}", bytes as f64 / (1u64 << (10 * power)) as f64, units[power - 1])
}

/// What to reduce where the device has no room for a buffer, by the buffer's label.
pub fn keys_of(label: &str) -> &'static str {
    let owner = label.split('.').next().unwrap_or_default();
    match owner {
        "replay" => "collect.capacity (or vaccine.capacity)",
        "collect" => "collect.environments",
        "vaccine" => "vaccine.environments",
        "market" => "the number of bars",
        "backtest" => "the number of bars",
        "online" | "target" | "adam" | "grad" => {
            "model.trunk1, model.trunk2 and the heads' widths, or train.batch"
        }
        _ => "train.batch, or the widths of the part that the buffer belongs to",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_fit_is_refused_with_its_keys() {
        check("nothing", 0, "").unwrap();
        let text = check("the replay ring", u64::MAX, "collect.capacity").unwrap_err().to_string();
        assert!(text.starts_with("no room for the replay ring: 16.0 EiB would be needed and "), "{text}");
        assert!(text.ends_with(" of memory are available; reduce collect.capacity"), "{text}");
    }

    #[test]
    fn sizes_and_the_systems_file_are_read() {
        assert_eq!(of_meminfo("MemTotal: 9 kB\nMemAvailable:     21 kB\n"), Some(21 * 1024));
        assert_eq!(of_meminfo("MemTotal: 9 kB\n"), None);
        let sizes = [1023, 1024, 3 << 29, u64::MAX].map(size);
        assert_eq!(sizes, ["1023 bytes", "1.0 KiB", "1.5 GiB", "16.0 EiB"]);
    }
}
