//! Path templates, such as `/blocks/{block}/activity` and `/{rest:*}`. Pure; parsed at
//! load.

/// A path with parameters, in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathTemplate(pub(super) Vec<PathPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathPart {
    Literal(Box<str>),
    /// The parameter of this index in the path's order.
    Param(usize),
    /// The rest of the path, unchanged.
    Tail,
}

/// Why a path template is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    /// It does not begin with a slash, or has empty or dot segments.
    #[error("a path begins with / and has no empty, . or .. segments")]
    NotAPath,
    /// A parameter is not a whole segment, or has an invalid name.
    #[error(
        "a parameter is a whole segment, such as /{{name}}/, with a name of letters, digits and _"
    )]
    BadParameter,
    /// A character that must be percent-encoded.
    #[error("a path is ASCII without blanks, ?, # and %")]
    BadCharacter,
    /// A tail is not the last segment.
    #[error("a tail, {{name:*}}, is the last segment")]
    TailInside,
    /// A parameter that the route's path does not have.
    #[error("there is no parameter {{{0}}} in the route's path")]
    UnknownParameter(String),
}

/// Whether a segment is a tail, which matches the rest of a path: `{name:*}`.
pub(super) fn is_tail(segment: &str) -> bool {
    segment.starts_with('{') && segment.ends_with(":*}")
}

/// The names of the parameters of a path template, in its order, without its tail.
///
/// # Errors
/// Where the template is invalid.
pub(crate) fn parameter_names(path: &str) -> Result<Vec<&str>, TemplateError> {
    let segments = path.strip_prefix('/').ok_or(TemplateError::NotAPath)?;
    let mut names = Vec::new();
    let mut segments = segments.split('/').peekable();
    while let Some(segment) = segments.next() {
        if is_tail(segment) {
            match segments.peek() {
                None => break,
                Some(_) => return Err(TemplateError::TailInside),
            }
        }
        if matches!(segment, "" | "." | "..") {
            return Err(TemplateError::NotAPath);
        }
        if segment
            .bytes()
            .any(|b| !b.is_ascii_graphic() || b"?#%".contains(&b))
        {
            return Err(TemplateError::BadCharacter);
        }
        if !segment.contains(['{', '}']) {
            continue;
        }
        let name = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}'));
        let is_name =
            |n: &&str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        names.push(name.filter(is_name).ok_or(TemplateError::BadParameter)?);
    }
    Ok(names)
}

impl PathTemplate {
    /// Parses a template with the parameters `names`.
    ///
    /// # Errors
    /// Where it is invalid or has a parameter that is not in `names`.
    pub(crate) fn new(path: &str, names: &[&str]) -> Result<Self, TemplateError> {
        parameter_names(path)?;
        let mut pieces = Vec::new();
        let mut literal = String::new();
        for segment in path.split('/').skip(1) {
            literal.push('/');
            if is_tail(segment) {
                pieces.push(PathPart::Literal(std::mem::take(&mut literal).into()));
                pieces.push(PathPart::Tail);
                continue;
            }
            let Some(name) = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}')) else {
                literal.push_str(segment);
                continue;
            };
            let index = names.iter().position(|n| *n == name);
            let index = index.ok_or_else(|| TemplateError::UnknownParameter(name.to_owned()))?;
            pieces.push(PathPart::Literal(std::mem::take(&mut literal).into()));
            pieces.push(PathPart::Param(index));
        }
        if !literal.is_empty() {
            pieces.push(PathPart::Literal(literal.into()));
        }
        Ok(Self(pieces))
    }

    /// The segment of a parameter, counted from 0.
    pub(crate) fn segment_of(&self, parameter: usize) -> Option<usize> {
        let at = self
            .0
            .iter()
            .position(|piece| *piece == PathPart::Param(parameter))?;
        let slashes = |piece: &PathPart| match piece {
            PathPart::Literal(text) => text.matches('/').count(),
            PathPart::Param(_) | PathPart::Tail => 0,
        };
        self.0[..at]
            .iter()
            .map(slashes)
            .sum::<usize>()
            .checked_sub(1)
    }

    /// Whether values of its parameters may make it a path.
    pub(crate) fn may_make(&self, path: &str) -> bool {
        let mut rest = path;
        for part in &self.0 {
            let after = match part {
                PathPart::Literal(text) => rest.strip_prefix(&**text),
                PathPart::Param(_) => rest.get(rest.find('/').unwrap_or(rest.len())..),
                PathPart::Tail => Some(""),
            };
            match after {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
    }
}
