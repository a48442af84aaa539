//! Everything that is wrong with a file, each problem with its line and column.
//!
//! Deliberately absent: the text of the line. A secret that was put into the
//! file by mistake would reach a log.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Where something stands in a file, in bytes.
pub(super) type FileSpan = Range<usize>;

/// Something that is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The file's name.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The key, what came, and what is allowed.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.file, self.line, self.column, self.message
        )
    }
}

/// Where a file sets its keys, for what turns out to be wrong with a value only when it is
/// used: a file that it names cannot be read, or there is a key for a URL of plain http.
#[derive(Clone, Debug, Default)]
pub struct KeyPositions {
    file: String,
    /// Line and column of a value, from 1, by the key's path.
    keys: BTreeMap<String, (usize, usize)>,
}

impl KeyPositions {
    /// A problem with the value of a key such as `upstream.url`, after its position if the
    /// file sets it.
    pub fn locate(&self, key: &str, problem: impl fmt::Display) -> String {
        match self.keys.get(key) {
            Some((line, column)) => format!("{}:{line}:{column}: {problem}", self.file),
            None => problem.to_string(),
        }
    }

    /// A flag or a variable has replaced the value of a key.
    pub fn replaced(&mut self, key: &str) {
        self.keys.remove(key);
    }
}

/// The most problems of a file that are listed. (The file may be no configuration at all.)
const MOST_LISTED: usize = 100;

/// Collects the problems of one file.
pub(super) struct Problems<'s> {
    file: &'s str,
    source: &'s str,
    /// The offset of each line.
    lines: Vec<usize>,
    found: RefCell<Vec<(usize, String)>>,
    /// What is valid and should change.
    warnings: RefCell<Vec<(usize, String)>>,
    /// Where each value begins, by the path of its key.
    positions: RefCell<BTreeMap<String, usize>>,
}

impl<'s> Problems<'s> {
    /// No problems yet, in a file of this name and text.
    pub(super) fn new(file: &'s str, source: &'s str) -> Self {
        Self {
            file,
            source,
            lines: std::iter::once(0)
                .chain(source.match_indices('\n').map(|(at, _)| at + 1))
                .collect(),
            found: RefCell::default(),
            warnings: RefCell::default(),
            positions: RefCell::default(),
        }
    }

    /// Adds a problem.
    pub(super) fn add(&self, at: &FileSpan, message: impl Into<String>) {
        self.found.borrow_mut().push((at.start, message.into()));
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// The problems, in the order of the file.
    pub(super) fn into_list(self) -> Vec<ConfigProblem> {
        let mut found = self.found.take();
        found.sort();
        found.dedup();
        let left_out = found.len().saturating_sub(MOST_LISTED);
        found.truncate(MOST_LISTED);
        let mut listed = self.located(found);
        if let Some(last) = listed.last_mut()
            && left_out > 0
        {
            last.message
                .push_str(&format!(" (and {left_out} more problems after this one)"));
        }
        listed
    }

    /// All warnings, in the order of the file.
    pub(super) fn into_warnings(self) -> Vec<ConfigProblem> {
        self.located(self.warnings.take())
    }

    /// Where the keys are set.
    pub(super) fn key_positions(&self) -> KeyPositions {
        let positions = self.positions.borrow();
        let keys = positions.iter();
        KeyPositions {
            file: self.file.to_owned(),
            keys: keys
                .map(|(key, offset)| (key.clone(), self.line_and_column(*offset)))
                .collect(),
        }
    }

    fn located(&self, mut found: Vec<(usize, String)>) -> Vec<ConfigProblem> {
        found.sort();
        found.dedup();
        let located = |(offset, message): (usize, String)| {
            let (line, column) = self.line_and_column(offset);
            ConfigProblem {
                file: self.file.to_owned(),
                line,
                column,
                message,
            }
        };
        found.into_iter().map(located).collect()
    }

    /// Both from 1, the column in characters.
    fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let offset = offset.min(self.source.len());
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines.get(line.saturating_sub(1)).copied();
        let before = &self.source[start.unwrap_or(0)..offset];
        (line, before.chars().count() + 1)
    }
}

/// The path of a table or a key, such as `upstream.retry`, and where to report
/// what is wrong with it.
#[derive(Clone)]
pub(super) struct Path<'p> {
    problems: &'p Problems<'p>,
    name: String,
    /// Whether it is an element of the list of that path.
    is_element: bool,
}

impl<'p> Path<'p> {
    /// The file's root, whose path is empty.
    pub(super) fn root(problems: &'p Problems<'p>) -> Self {
        Self {
            problems,
            name: String::new(),
            is_element: false,
        }
    }

    /// The path as it is written in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The path of a key below this one.
    pub(super) fn key(&self, key: &str) -> Self {
        Self {
            problems: self.problems,
            name: match self.name.is_empty() {
                true => key.to_owned(),
                false => format!("{}.{key}", self.name),
            },
            is_element: false,
        }
    }

    /// The path of an element of this list.
    pub(super) fn element(&self) -> Self {
        Self {
            is_element: true,
            ..self.clone()
        }
    }

    /// Notes where the value of the key of this path begins.
    pub(super) fn is_set(&self, at: &FileSpan) {
        let mut positions = self.problems.positions.borrow_mut();
        positions.insert(self.name.clone(), at.start);
    }

    /// Reports a value in place of which something else is allowed.
    pub(super) fn wrong(&self, at: &FileSpan, came: &str, allowed: &str) {
        let verb = if self.is_element { "has" } else { "is" };
        self.problem(at, format!("{verb} {came}; {allowed}"));
    }

    /// Reports a problem. The message begins with the path.
    pub(super) fn problem(&self, at: &FileSpan, message: impl fmt::Display) {
        self.problems.add(at, format!("{} {message}", self.name));
    }

    /// Warns of something that is valid. The message begins with the path.
    pub(super) fn warn(&self, at: &FileSpan, message: impl fmt::Display) {
        let warning = (at.start, format!("{} {message}", self.name));
        self.problems.warnings.borrow_mut().push(warning);
    }

    /// Where something stands in the file: line and column, from 1.
    pub(super) fn line_and_column(&self, at: &FileSpan) -> (usize, usize) {
        self.problems.line_and_column(at.start)
    }

    /// This path, after the file, the line and the column: where a message about it
    /// begins.
    pub(super) fn located(&self, at: &FileSpan) -> String {
        let (line, column) = self.line_and_column(at);
        format!("{}:{line}:{column}: {}", self.problems.file, self.name)
    }

    /// Reports a problem whose message names the key itself.
    pub(super) fn problem_whole(&self, at: &FileSpan, message: impl Into<String>) {
        self.problems.add(at, message);
    }
}
