//! Path templates, such as `/blocks/{block}/activity` and `/{rest:*}`. Pure; parsed at
//! load.

/// A path with parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathTemplate(pub(super) Vec<PathPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathPart {
    /// All up to the next parameter, with its slashes.
    Literal(Box<str>),
    /// The parameter of this index in the path's order.
    Param(usize),
    /// The rest of the path, unchanged.
    Tail,
}

/// The name of the tail in the router.
pub(super) const TAIL: &str = "-tail";

/// Whether a segment is a tail, which matches the rest of a path: `{name:*}`.
pub(super) fn is_tail(segment: &str) -> bool {
    segment.starts_with('{') && segment.ends_with(":*}")
}

/// The name of the parameter that a segment is, if it is one.
fn parameter(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    Some(name).filter(|name| is_name && !name.is_empty())
}

/// The names of the parameters of a path template, in its order, without its tail.
///
/// # Errors
/// Why the template is invalid.
pub(crate) fn parameter_names(path: &str) -> Result<Vec<&str>, &'static str> {
    let mut names = Vec::new();
    let mut segments = path.split('/').peekable();
    let mut is_path = segments.next() == Some("");
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if is_tail(segment) && is_last {
            continue;
        }
        is_path &= !matches!(segment, "" | "." | "..");
        if !is_path {
            break;
        }
        let is_plain = |b: u8| b.is_ascii_graphic() && !b"?#%".contains(&b);
        if is_tail(segment) {
            return Err("a tail, {name:*}, is the last segment");
        }
        if !segment.bytes().all(is_plain) {
            return Err("a path is ASCII without blanks, ?, # and %");
        }
        if segment.starts_with(':') || segment == "*" {
            return Err("a parameter is written {name}, and a tail {name:*}");
        }
        if segment.contains(['{', '}']) {
            names.push(parameter(segment).ok_or(
                "a parameter is a whole segment, such as /{name}/, with a name of letters, digits and _",
            )?);
        }
    }
    match is_path {
        true => Ok(names),
        false => Err("a path begins with / and has no empty, . or .. segments"),
    }
}

impl PathTemplate {
    /// Parses a template with the parameters `names`.
    ///
    /// # Errors
    /// Where it is invalid or has a parameter that is not in `names`.
    pub(crate) fn new(path: &str, names: &[&str]) -> Result<Self, String> {
        parameter_names(path)?;
        let (mut parts, mut literal) = (Vec::new(), String::new());
        for segment in path.split('/').skip(1) {
            literal.push('/');
            let part = match parameter(segment) {
                Some(name) => {
                    let at = names.iter().position(|own| *own == name);
                    PathPart::Param(at.ok_or_else(|| {
                        format!("there is no parameter {{{name}}} in the route's path")
                    })?)
                }
                None if is_tail(segment) => PathPart::Tail,
                None => {
                    literal.push_str(segment);
                    continue;
                }
            };
            parts.push(PathPart::Literal(std::mem::take(&mut literal).into()));
            parts.push(part);
        }
        parts.push(PathPart::Literal(literal.into()));
        Ok(Self(parts))
    }

    /// The path with a value of its only parameter; `None` where it has others, or a tail.
    pub(crate) fn with(&self, value: &str) -> Option<String> {
        let mut path = String::new();
        let mut value = Some(value);
        for part in &self.0 {
            path.push_str(match part {
                PathPart::Literal(text) => text,
                PathPart::Param(_) => value.take()?,
                PathPart::Tail => return None,
            });
        }
        Some(path)
    }

    /// The segment of a parameter, counted from 0.
    pub(crate) fn segment_of(&self, parameter: usize) -> Option<usize> {
        let at = self
            .0
            .iter()
            .position(|part| *part == PathPart::Param(parameter))?;
        let slashes = self.0[..at].iter().map(|part| match part {
            PathPart::Literal(text) => text.matches('/').count(),
            PathPart::Param(_) | PathPart::Tail => 0,
        });
        Some(slashes.sum::<usize>() - 1)
    }
}
