//! Regular expressions for JSON Schema: numbers within bounds, with units.

use std::ops::RangeInclusive;

/// Matches a whole number with a unit whose product with the unit's factor is
/// within the bounds. Leading zeros are allowed, as they are to the reader.
pub(super) fn of_units(bounds: &RangeInclusive<u64>, units: &[(&str, u64)]) -> String {
    let each = units.iter().filter_map(|(unit, factor)| {
        let (from, to) = (bounds.start().div_ceil(*factor), bounds.end() / factor);
        (from <= to).then(|| format!("(?:{}){unit}", of_numbers(from, to)))
    });
    format!("^0*(?:{})$", each.collect::<Vec<_>>().join("|"))
}

/// Matches the numbers of a range, without leading zeros (0 as nothing, since
/// zeros may go before it).
fn of_numbers(from: u64, to: u64) -> String {
    let mut parts = Vec::new();
    let mut from = from;
    if from == 0 {
        // Of zeros alone, one belongs to the number.
        parts.push("0".to_owned());
        from = 1;
    }
    while from <= to {
        let end = same_shape(from, to);
        parts.push(of_digits(from, end));
        from = end + 1;
    }
    parts.join("|")
}

/// The largest number from `from` to `to` for which each digit of the range can
/// be given independently: `1200` to `1999`, say, as `1[2-9][0-9][0-9]`.
fn same_shape(from: u64, to: u64) -> u64 {
    let mut power = 1;
    let mut best = from;
    // As many trailing zeros of `from` may become nines, and the digit before
    // them may rise to nine.
    loop {
        let digit = from / power % 10;
        let free = from - from % power;
        if free != from {
            return best;
        }
        for last in (digit..=9).rev() {
            let end = from + (last - digit) * power + (power - 1);
            if end <= to {
                best = best.max(end);
                break;
            }
        }
        let Some(next) = power.checked_mul(10).filter(|next| *next <= from) else {
            return best;
        };
        power = next;
    }
}

fn of_digits(from: u64, to: u64) -> String {
    let (from, to) = (from.to_string(), to.to_string());
    let mut pattern = String::new();
    for (first, last) in from.chars().zip(to.chars()) {
        match first == last {
            true => pattern.push(first),
            false => pattern.push_str(&format!("[{first}-{last}]")),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use regex_lite::Regex;

    use super::*;

    #[test]
    fn a_pattern_matches_the_numbers_of_its_range_alone() {
        for (from, to) in [
            (0, 0),
            (0, 7),
            (1, 9),
            (1, 10),
            (5, 123),
            (16, 1999),
            (100, 365),
            (365, 2001),
            (1024, 1024),
        ] {
            let regex = Regex::new(&of_units(&(from..=to), &[("s", 1)])).unwrap();
            for number in 0..3000 {
                let is_in = (from..=to).contains(&number);
                for text in [format!("{number}s"), format!("00{number}s")] {
                    assert_eq!(regex.is_match(&text), is_in, "{text}: {from} to {to}");
                }
            }
        }
        let units = Regex::new(&of_units(&(100..=86_400_000), &crate::units::UNITS)).unwrap();
        for (text, is_in) in [
            ("99ms", false),
            ("100ms", true),
            ("0s", false),
            ("1s", true),
            ("24h", true),
            ("25h", false),
            ("1d", true),
            ("2d", false),
            ("86400s", true),
            ("86401s", false),
            ("s", false),
            ("1", false),
        ] {
            assert_eq!(units.is_match(text), is_in, "{text}");
        }
    }
}
