//! The classic text format of Prometheus (`text/plain; version=0.0.4`), made from
//! OpenMetrics text. It differs in the names of counters' families, which have the suffix
//! of their samples, in the types, in the escapes of help texts, in the unit of timestamps,
//! and has neither units, exemplars, `_created` samples nor an end mark.

/// The type of a family, and what its name ends in.
const TYPES: [(&str, &str, &str); 5] = [
    ("counter", "counter", "_total"),
    ("info", "gauge", "_info"),
    ("stateset", "gauge", ""),
    ("unknown", "untyped", ""),
    ("gaugehistogram", "untyped", ""),
];

/// The same metrics in the classic format.
pub fn classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // The name of a family depends on its type, which follows its help.
    let mut help = None;
    let mut created = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = Some(rest.split_once(' ').unwrap_or((rest, "")));
        } else if let Some((family, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            let known = TYPES.iter().find(|(from, ..)| *from == kind);
            let (kind, suffix) = known.map_or((kind, ""), |(_, to, suffix)| (*to, *suffix));
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == family) {
                let help = help.replace("\\\"", "\"");
                text.push_str(&format!("# HELP {family}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {family}{suffix} {kind}\n"));
            created = Some(format!("{family}_created"));
        } else if !line.starts_with('#') && !line.is_empty() {
            push_sample(&mut text, line, created.as_deref());
        }
    }
    text
}

/// Writes a sample: its name and labels, value, and timestamp.
fn push_sample(text: &mut String, line: &str, created: Option<&str>) {
    let (series, rest) = line.split_at(end_of_labels(line));
    let name = series.split('{').next();
    if created.is_some() && name == created {
        return;
    }
    let mut rest = rest.split_ascii_whitespace();
    let value = rest.next().unwrap_or("NaN");
    text.push_str(&format!("{series} {value}"));
    // An exemplar begins with a number sign.
    let timestamp = rest.next().filter(|next| *next != "#");
    if let Some(seconds) = timestamp.and_then(|seconds| seconds.parse::<f64>().ok()) {
        text.push_str(&format!(" {:.0}", seconds * 1000.0));
    }
    text.push('\n');
}

/// Where the name and the labels of a sample end.
fn end_of_labels(line: &str) -> usize {
    let (mut in_labels, mut in_value, mut is_escaped) = (false, false, false);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_value => is_escaped = true,
            b'"' => in_value = !in_value,
            b'{' if !in_value => in_labels = true,
            b'}' if in_labels && !in_value => return at + 1,
            b' ' if !in_labels => return at,
            _ => {}
        }
    }
    line.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_between_the_formats() {
        let rows = [
            // A counter's family has the name of its samples.
            (
                "# HELP a Some \\\"help\\\" with \\\\ and \\n.\n# TYPE a counter\na_total 3\na_created 1.5\n",
                "# HELP a_total Some \"help\" with \\\\ and \\n.\n# TYPE a_total counter\na_total 3\n",
            ),
            (
                "# HELP a Help.\n# TYPE a counter\na_total{x=\"1\"} 3\na_created{x=\"1\"} 1\na_total{x=\"2\"} 4\n",
                "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"1\"} 3\na_total{x=\"2\"} 4\n",
            ),
            ("# TYPE g gauge\ng 1.5\n", "# TYPE g gauge\ng 1.5\n"),
            (
                "# TYPE i info\ni_info{v=\"1\"} 1\n",
                "# TYPE i_info gauge\ni_info{v=\"1\"} 1\n",
            ),
            ("# TYPE u unknown\nu 1\n", "# TYPE u untyped\nu 1\n"),
            (
                "# TYPE s stateset\ns{s=\"on\"} 1\n",
                "# TYPE s gauge\ns{s=\"on\"} 1\n",
            ),
            (
                "# HELP h Help.\n# TYPE h histogram\n# UNIT h seconds\nh_sum 1.5\nh_count 2\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\n",
                "# HELP h Help.\n# TYPE h histogram\nh_sum 1.5\nh_count 2\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\n",
            ),
            // Exemplars, timestamps, and labels that look like them.
            (
                "h_bucket{le=\"1.0\"} 1 # {id=\"a\"} 0.5 1.5\n",
                "h_bucket{le=\"1.0\"} 1\n",
            ),
            (
                "a_total 3 1700000000.123 # {id=\"a\"} 1\n",
                "a_total 3 1700000000123\n",
            ),
            (
                "a{x=\"y} 7 # {\",z=\"\\\"} 8\"} 9\n",
                "a{x=\"y} 7 # {\",z=\"\\\"} 8\"} 9\n",
            ),
            ("g NaN\ng2 +Inf\n", "g NaN\ng2 +Inf\n"),
            // `_created` of a gauge is a name like others.
            (
                "# TYPE x_created gauge\nx_created 1\n",
                "# TYPE x_created gauge\nx_created 1\n",
            ),
            ("# EOF\n", ""),
        ];
        for (open_metrics, expected) in rows {
            assert_eq!(classic(open_metrics), expected, "{open_metrics}");
        }
    }
}
