//! How sizes, times and counts look to people.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/// Bytes: `12.3 MiB`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would be rounded to 1024 is one of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration in milliseconds, three digits of it: `4.21 ms`, `1.23 s`, `2m 05s`.
pub fn ms(ms: f64) -> String {
    match ms {
        ..9.995 => format!("{ms:.2} ms"),
        ..99.95 => format!("{ms:.1} ms"),
        ..999.5 => format!("{ms:.0} ms"),
        ..9_995.0 => format!("{:.2} s", ms / 1e3),
        ..59_950.0 => format!("{:.1} s", ms / 1e3),
        _ => {
            let seconds = (ms / 1e3).round() as u64;
            match seconds / 3600 {
                0 => format!("{}m {:02}s", seconds / 60, seconds % 60),
                hours => format!("{hours}h {:02}m", seconds % 3600 / 60),
            }
        }
    }
}

/// An instant of virtual time, to the millisecond: `12.345s`, `2m05.000s`, `1h02m05.000s`.
pub fn instant(ns: u64) -> String {
    let ms = ns / 1_000_000;
    let (seconds, ms) = (ms / 1000, ms % 1000);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}.{ms:03}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}.{ms:03}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes:02}m{seconds:02}.{ms:03}s"),
    }
}

/// Of a time as RFC 3339 has it the time of day: `08:43:00`; or the day and the time: `11-21 08:43`.
pub fn time_of_day(rfc3339: &str, alone: bool) -> String {
    rfc3339.get(if alone { 11..19 } else { 5..16 }).unwrap_or_default().replace('T', " ")
}

/// A count with its thousands apart: `262,144`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits are ASCII")).collect();
    groups.join(",")
}

/// One of several, or several of them: `1 page`, `7 pages`.
pub fn several(number: u64, one: &str) -> String {
    format!("{} {one}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A class of numbers from a power of two up to, but not with, the next: `1`, `4 to 7`.
pub fn power_of_two(least: u32) -> String {
    match least {
        1 => "1".to_owned(),
        least => format!("{} to {}", count(least.into()), count(u64::from(least) * 2 - 1)),
    }
}

/// A share: `98.7 %`.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

/// Columns that a text takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The beginning of a text that fits into so many columns, with `…` for what was cut off.
pub fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let kept = text.chars().take_while(|c| {
        let columns = c.width().unwrap_or(0);
        let fits = columns <= left;
        left = left.saturating_sub(columns);
        fits
    });
    kept.chain((columns > 0).then_some('…')).collect()
}

/// A text from outside in one line, with nothing in it that could drive the terminal.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_whitespace() { ' ' } else { visible(c) }).collect()
}

/// The same, but with its lines.
pub fn harmless_lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { visible(c) }).collect()
}

fn visible(c: char) -> char {
    // Besides control characters: those that turn the direction of writing, with which a text can show as another.
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || turns { '\u{fffd}' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for (size, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (12_900_000, "12.3 MiB"),
            (1 << 30, "1.0 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(size), expected);
        }
    }

    #[test]
    fn times() {
        for (time, expected) in [
            (0.0, "0.00 ms"),
            (4.213, "4.21 ms"),
            (9.996, "10.0 ms"),
            (42.13, "42.1 ms"),
            (421.3, "421 ms"),
            (999.7, "1.00 s"),
            (12_345.0, "12.3 s"),
            (59_960.0, "1m 00s"),
            (125_000.0, "2m 05s"),
            (3_725_000.0, "1h 02m"),
        ] {
            assert_eq!(ms(time), expected);
        }
    }

    #[test]
    fn instants_and_counts() {
        assert_eq!(instant(12_345_678_901), "12.345s");
        assert_eq!(instant(125_000_000_000), "2m05.000s");
        assert_eq!(instant(3_725_001_000_000), "1h02m05.001s");
        assert_eq!([count(0), count(999), count(262_144), count(1_000_000)], ["0", "999", "262,144", "1,000,000"]);
        assert_eq!([several(1, "page"), several(1000, "page")], ["1 page", "1,000 pages"]);
        assert_eq!([percent(1, 3), percent(0, 0)], ["33.3 %", "-"]);
    }

    #[test]
    fn nothing_from_outside_drives_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\nc\td\u{202e}e"), "a\u{fffd}[2Jb c d\u{fffd}e");
        assert_eq!(harmless_lines("a\nb\r"), "a\nb\u{fffd}");
    }

    proptest! {
        #[test]
        fn a_text_is_made_to_fit(text: String, columns in 0_usize..40) {
            let text = harmless(&text);
            let fitted = fit(&text, columns);
            prop_assert!(width(&fitted) <= columns.max(width(&text).min(columns)), "{fitted:?}");
            prop_assert!(width(&text) > columns || fitted == text);
        }
    }
}
