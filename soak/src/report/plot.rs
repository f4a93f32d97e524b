//! One plot as inline SVG: lines over the run's time, faults as bands. Its colours are variables of the page's style sheet, so
//! that it follows light, dark and print; the drawing library only knows fixed colours, so each variable has a placeholder
//! that is replaced afterwards.

use super::words;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The size of a plot in its own units; the page scales it.
const SIZE: (u32, u32) = (960, 250);
/// How many colours lines have.
pub(super) const COLOURS: usize = 8;

/// A logarithmic scale begins here at the least.
const LOG_MIN: f64 = 0.1;

const INK: RGBColor = RGBColor(1, 0, 0);
const GRID: RGBColor = RGBColor(2, 0, 0);
const FAULT: RGBColor = RGBColor(3, 0, 0);
const LIMIT: RGBColor = RGBColor(4, 0, 0);
const INVALID: RGBColor = RGBColor(5, 0, 0);

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Microseconds.
    Latency,
    /// Bytes.
    Bytes,
    /// Percent of a core.
    Percent,
    /// A number.
    Count,
}

/// A line.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) colour: u8,
    /// Of the run that is compared with, or what was intended.
    pub(super) dashed: bool,
    /// Seconds and values. A value that is no number interrupts the line.
    pub(super) points: Vec<(f64, f64)>,
}

/// A stretch of the time axis, in seconds.
#[derive(Debug, Clone)]
pub(super) struct Band {
    pub(super) from: f64,
    pub(super) to: f64,
    /// Fault's number; none: the harness itself is not to be believed.
    pub(super) number: Option<usize>,
}

/// A plot.
#[derive(Debug, Clone)]
pub(super) struct Plot {
    pub(super) title: &'static str,
    /// What to see in it.
    pub(super) note: &'static str,
    pub(super) unit: Unit,
    pub(super) log: bool,
    pub(super) lines: Vec<Line>,
    /// A bound that the values should stay below.
    pub(super) limit: Option<f64>,
}

impl Plot {
    /// Whether there is anything to see.
    pub(super) fn is_empty(&self) -> bool {
        let values = |line: &Line| line.points.iter().any(|(_, value)| value.is_finite());
        !self.lines.iter().any(values)
    }

    /// The plot as an SVG element. `end` is the end of the time axis, seconds.
    pub(super) fn svg(&self, end: f64, bands: &[Band]) -> String {
        // In the axis's own unit, so that its labels stand at round times.
        let unit_s = words::axis_unit(end);
        let end = (end / unit_s).max(1e-3);
        let mut plot = self.clone();
        for (at, _) in plot.lines.iter_mut().flat_map(|line| &mut line.points) {
            *at /= unit_s;
        }
        let bands: Vec<Band> = bands
            .iter()
            .map(|band| Band {
                from: band.from / unit_s,
                to: band.to / unit_s,
                ..*band
            })
            .collect();
        plot.drawn(end, &bands, unit_s)
    }

    fn drawn(&self, end: f64, bands: &[Band], unit_s: f64) -> String {
        let mut text = String::new();
        let values = || {
            let points = self.lines.iter().flat_map(|line| &line.points);
            points
                .map(|(_, value)| *value)
                .chain(self.limit)
                .filter(|value| value.is_finite())
        };
        let most = values().fold(0.0, f64::max);
        let drawn = if self.log {
            let least = values()
                .filter(|value| *value > 0.0)
                .fold(f64::MAX, f64::min);
            let least = 10_f64.powf(least.min(most).max(LOG_MIN).log10().floor());
            let most = 10_f64.powf((most.max(least * 10.0) * 1.05).log10().ceil());
            self.draw(
                &mut text,
                (end, unit_s),
                bands,
                (least..most).log_scale(),
                (least, most),
            )
        } else {
            let most = if most > 0.0 { most * 1.08 } else { 1.0 };
            self.draw(&mut text, (end, unit_s), bands, 0.0..most, (0.0, most))
        };
        match drawn {
            Ok(()) => themed(&text),
            // Text in memory has no reason to fail; a plot that cannot be drawn says so instead of ending the report.
            Err(why) => format!("<p>This plot cannot be drawn: {}</p>", words::escaped(&why)),
        }
    }

    fn draw<Y>(
        &self,
        text: &mut String,
        (end, unit_s): (f64, f64),
        bands: &[Band],
        y: Y,
        (least, most): (f64, f64),
    ) -> Result<(), String>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let why = |error: DrawingAreaErrorKind<std::io::Error>| error.to_string();
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin_right(14)
            .margin_top(18)
            .x_label_area_size(26)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..end, y)
            .map_err(why)?;
        for band in bands {
            let colour = if band.number.is_some() {
                FAULT
            } else {
                INVALID
            };
            let to = band.to.min(end);
            let corners = [(band.from, least), (to.max(band.from), most)];
            chart
                .draw_series([Rectangle::new(corners, colour.mix(0.14).filled())])
                .map_err(why)?;
        }
        let unit = self.unit;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_labels(9)
            .y_labels(if self.log { 4 } else { 5 })
            .x_label_formatter(&|time| words::axis_time(*time, unit_s))
            .y_label_formatter(&|value| words::value(*value, unit))
            .label_style(("sans-serif", 15).into_font().color(&INK))
            .draw()
            .map_err(why)?;
        for band in bands {
            let mark = [(band.from, least), (band.from, most)];
            if let Some(number) = band.number {
                chart
                    .draw_series([PathElement::new(mark, FAULT.stroke_width(1))])
                    .map_err(why)?;
                let (x, y) = chart.backend_coord(&(band.from, most));
                let style = TextStyle::from(("sans-serif", 13).into_font())
                    .color(&FAULT)
                    .pos(Pos::new(HPos::Center, VPos::Bottom));
                root.draw_text(&number.to_string(), &style, (x, y - 2))
                    .map_err(why)?;
            }
        }
        if let Some(limit) = self.limit {
            let line = [(0.0, limit), (end, limit)];
            chart
                .draw_series([PathElement::new(line, LIMIT.stroke_width(1))])
                .map_err(why)?;
        }
        for line in &self.lines {
            let colour = RGBColor(if line.dashed { 33 } else { 32 }, line.colour, 0);
            let width = if line.dashed { 1 } else { 2 };
            for part in line.points.split(|(_, value)| !value.is_finite()) {
                let points = part
                    .iter()
                    .map(|(at, value)| (*at, value.clamp(least, most)));
                chart
                    .draw_series(LineSeries::new(points, colour.stroke_width(width)))
                    .map_err(why)?;
            }
        }
        root.present().map_err(why)
    }
}

/// Puts variables of the style sheet in the place of the placeholders, and leaves the size to the page.
fn themed(svg: &str) -> String {
    let mut text = svg.replacen(
        &format!(r#"width="{}" height="{}""#, SIZE.0, SIZE.1),
        r#"class="plot" role="img""#,
        1,
    );
    let mut put = |placeholder: RGBColor, name: &str, more: &str| {
        let RGBColor(r, g, b) = placeholder;
        for attribute in ["stroke", "fill"] {
            text = text.replace(
                &format!(r##"{attribute}="#{r:02X}{g:02X}{b:02X}""##),
                &format!(r#"style="{attribute}:var({name}){more}""#),
            );
        }
    };
    put(INK, "--ink-2", "");
    put(GRID, "--grid", "");
    put(FAULT, "--fault", "");
    put(LIMIT, "--limit", ";stroke-dasharray:2 4");
    put(INVALID, "--invalid", "");
    for colour in 0..8 {
        put(RGBColor(32, colour, 0), &format!("--s{colour}"), "");
        put(
            RGBColor(33, colour, 0),
            &format!("--s{colour}"),
            ";stroke-dasharray:6 4",
        );
    }
    text.replace(r#" font-family="sans-serif""#, "")
        .replace("\n\n", "\n")
}
