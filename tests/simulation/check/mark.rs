//! The number of its request, which each upstream body bears.

/// The API's content type.
pub(super) const JSON: &str = "application/json; charset=utf-8";

/// Digits of a mark.
const DIGITS: usize = 14;

pub(super) fn write_mark(body: &mut String, id: usize) {
    for digit in 0..DIGITS {
        body.push(if id >> digit & 1 == 1 { '\t' } else { ' ' });
    }
}

pub(super) fn read_mark(body: &str) -> (&str, usize) {
    let (text, mark) = body.split_at(body.len() - DIGITS);
    let digits = mark.chars().enumerate();
    let id = digits
        .map(|(at, digit)| usize::from(digit == '\t') << at)
        .sum();
    (text, id)
}
