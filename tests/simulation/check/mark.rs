//! The number of its request, which each upstream answer bears: in its items, encoded in
//! blanks that JSON ignores, since a cut page keeps items byte for byte; and in its content
//! type, which tells where an answer without items is from.

/// The API's content type.
const JSON: &str = "application/json; charset=utf-8; mark=";

/// Digits of a mark in an item.
const DIGITS: usize = 14;

/// What items and tokens begin with.
const OPENINGS: [&str; 2] = [r#"{"rune":"#, r#"{"token":"#];

pub(super) fn write_mark(body: &str, id: usize) -> String {
    let digit = |at: usize| if id >> at & 1 == 1 { '\t' } else { ' ' };
    let mark: String = (0..DIGITS).map(digit).collect();
    let marked = |body: String, opening: &&str| {
        body.replace(*opening, &format!("{{{mark}{}", &opening[1..]))
    };
    OPENINGS.iter().fold(body.to_owned(), marked)
}

pub(super) fn content_type(id: usize) -> String {
    format!("{JSON}{id}")
}

/// An answer's text without its marks, and the number of the request that brought it; `None`
/// where it says only that nothing has changed.
pub(super) fn read_mark(body: &str, content_type: &str) -> (String, Option<usize>) {
    let is_blank = |c: &char| matches!(c, ' ' | '\t');
    if OPENINGS.iter().any(|opening| body.contains(&opening[1..])) {
        let digits = body.chars().filter(is_blank).take(DIGITS).enumerate();
        let id = digits
            .map(|(at, digit)| usize::from(digit == '\t') << at)
            .sum();
        return (body.chars().filter(|c| !is_blank(c)).collect(), Some(id));
    }
    let id = content_type.strip_prefix(JSON);
    (body.to_owned(), id.map(|id| id.parse().unwrap()))
}
