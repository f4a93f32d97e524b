'use strict';
// Shows the states that the process sends, one a second. Every figure with data-series is that series of /metrics;
// data-value has it in full. What has not changed is not touched, so that nothing flickers and a selection stays.

const KEPT_MAX = 310;
const SILENT_MS_MAX = 4_000;
const RETRY_MS_MIN = 800;
const RETRY_MS_MAX = 8_000;

const byId = (id) => document.getElementById(id);
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const setData = (node, name, value) => {
  if (value === undefined || value === null) delete node.dataset[name];
  else if (node.dataset[name] !== String(value)) node.dataset[name] = String(value);
};
function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---- numbers for people

const whole = (value) => value === undefined || value === null ? '–' : Math.round(value).toLocaleString('en-GB').replaceAll(',', ' ');
const ms = (seconds) => seconds === undefined || seconds === null ? '–' : `${short(seconds * 1000)} ms`;
const percent = (ratio) => ratio === undefined || ratio === null ? '–' : `${trim(ratio * 100)} %`;
const times = (rate) => rate === undefined || rate === null ? '–' : `${trim(rate)}×`;
const clock = (time) => new Date(time).toLocaleTimeString('en-GB');
function bytes(count) {
  if (count === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let place = 0;
  let size = count;
  while (size >= 1024 && place < units.length - 1) { size /= 1024; place += 1; }
  return `${trim(size)} ${units[place]}`;
}
function span(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// ---- tables and tiles that change in place

/** Brings `home`'s children to `count`, made by `build`. */
function children(home, count, build) {
  while (home.children.length > count) home.lastElementChild.remove();
  while (home.children.length < count) home.append(build());
  return home.children;
}

/** A cell: { text, n: to the right, mood, tag, mono, series, value, node }. */
function fill(node, cell) {
  if (cell.node) {
    if (node.firstChild !== cell.node || node.childNodes.length !== 1) node.replaceChildren(cell.node);
    return;
  }
  const className = [cell.n ? 'n' : '', cell.mono ? 'mono' : ''].join(' ').trim();
  if (node.className !== className) node.className = className;
  let home = node;
  if (cell.tag) {
    home = node.firstElementChild ?? null;
    if (!home || home.className !== 'tag') { home = make('span', 'tag'); node.replaceChildren(home); }
  } else if (node.firstElementChild) {
    node.replaceChildren();
  }
  set(home, cell.text);
  setData(home, 'mood', cell.mood);
  setData(node, 'series', cell.series);
  setData(node, 'value', cell.series === undefined ? undefined : cell.value);
}

const tables = new WeakMap();
/** A table in `home`: columns [{ title, n }], rows of cells, the first of a row its heading. */
function table(home, label, columns, rows, none) {
  let parts = tables.get(home);
  if (!parts) {
    const scroll = make('div', 'scroll');
    scroll.tabIndex = 0;
    scroll.setAttribute('role', 'region');
    scroll.setAttribute('aria-label', label);
    const whole = make('table');
    const head = make('thead');
    const line = make('tr');
    for (const column of columns) {
      const cell = make('th', column.n ? 'n' : '', column.title);
      cell.scope = 'col';
      line.append(cell);
    }
    head.append(line);
    const body = make('tbody');
    whole.append(head, body);
    scroll.append(whole);
    const empty = make('p', 'none', none);
    home.append(scroll, empty);
    parts = { scroll, body, empty };
    tables.set(home, parts);
  }
  parts.scroll.hidden = rows.length === 0;
  parts.empty.hidden = rows.length > 0;
  const lines = children(parts.body, rows.length, () => {
    const line = make('tr');
    columns.forEach((_, index) => {
      const cell = make(index === 0 ? 'th' : 'td');
      if (index === 0) cell.scope = 'row';
      line.append(cell);
    });
    return line;
  });
  rows.forEach((cells, row) => cells.forEach((cell, index) => fill(lines[row].children[index], cell)));
}

function tiles(list) {
  const nodes = children(byId('tiles'), list.length, () => {
    const tile = make('div');
    tile.append(make('dt'), make('dd'), make('dd', 'note'));
    return tile;
  });
  list.forEach((tile, index) => {
    const [label, figure, note] = nodes[index].children;
    set(label, tile.label);
    set(figure, tile.text);
    setData(figure, 'mood', tile.mood);
    setData(figure, 'series', tile.series);
    setData(figure, 'value', tile.series === undefined ? undefined : tile.value);
    set(note, tile.note ?? '');
  });
}

// ---- the plots

let kinds = [];
let moments = [];
const plots = {};

function startPlots() {
  const colours = ['--line-1', '--line-2', '--line-3', '--line-4'];
  for (const id of ['rates', 'latency', 'failed', 'lag']) byId(`plot-${id}`).replaceChildren();
  plots.rates = new Plot(byId('plot-rates'), 'Requests per second', 10, kinds.map((name, index) => ({ name, colour: colours[index] })));
  plots.latency = new Plot(byId('plot-latency'), 'Poll latency in milliseconds', 1, [
    { name: 'p50', colour: '--line-1' }, { name: 'p95', colour: '--line-2' }, { name: 'p99', colour: '--line-3' }]);
  plots.failed = new Plot(byId('plot-failed'), 'Failed requests per second', 1, [{ name: '5xx', colour: '--line-bad' }]);
  plots.lag = new Plot(byId('plot-lag'), 'Event loop lag in milliseconds', 10, [{ name: 'lag', colour: '--line-1' }]);
}

function plot() {
  const at = moments.map((moment) => moment.time_ms);
  const column = (of) => moments.map(of);
  plots.rates.show(at, kinds.map((_, index) => column((moment) => moment.rates[index])));
  plots.latency.show(at, [0, 1, 2].map((index) => column((moment) => moment.latency_s === null ? null : moment.latency_s[index] * 1000)));
  plots.failed.show(at, [column((moment) => moment.failed)]);
  plots.lag.show(at, [column((moment) => moment.loop_lag_s === null ? null : moment.loop_lag_s * 1000)]);
}

// ---- the parts of the page

const STATES = {
  no_data: ['No data yet', undefined],
  ok: ['The promise holds', 'good'],
  ticket: ['The promise is at risk: look today', 'warn'],
  page: ['The promise is being broken: look now', 'bad'],
};

function showVerdict(sla) {
  setData(byId('verdict'), 'state', sla.state);
  set(byId('verdict-text'), STATES[sla.state][0]);
}

function showTiles(state) {
  const s = state.samples;
  const moment = state.moment ?? { rates: [], latency_s: null, loop_lag_s: null };
  const main = state.sla.objectives[0];
  const five = main?.windows.find((window) => window.seconds === 300);
  const burn = five && Math.max(five.errors_burn_rate, five.latency_burn_rate);
  const left = main && Math.min(main.budget.errors_left, main.budget.latency_left);
  const has = (five?.requests ?? 0) > 0;
  const list = [
    { label: 'Requests', text: `${short(moment.rates.reduce((sum, rate) => sum + rate, 0))}/s`, note: 'in the last second' },
    { label: 'Poll p99', text: ms(moment.latency_s?.[2]), note: moment.latency_s ? 'in the last second' : 'no poll in the last second' },
  ];
  if (main) {
    list.push(
      { label: 'Failed', text: percent(five?.error_ratio), note: `${main.name}, 5 min; ${percent(main.error_ratio_max)} allowed`, mood: has ? (five.error_ratio > main.error_ratio_max ? 'bad' : 'good') : undefined },
      { label: 'Burn rate', text: has ? times(burn) : '–', note: `${main.name}, 5 min; 1× spends it all`, mood: has && burn > 1 ? 'warn' : undefined },
      { label: 'Budget left', text: main.state === 'no_data' ? '–' : percent(left), note: `${main.name}, of 3 days`, mood: main.state === 'no_data' ? undefined : left <= 0 ? 'bad' : left < 0.25 ? 'warn' : 'good' },
    );
  }
  list.push({ label: 'Loop lag', text: ms(moment.loop_lag_s), note: 'worst in the last second', mood: moment.loop_lag_s > 0.1 ? 'bad' : moment.loop_lag_s > 0.02 ? 'warn' : undefined });
  const counted = (label, series, note) => list.push({ label, text: whole(s[series]), series, value: s[series], note });
  if (state.role === 'shim') {
    counted('Players online', 'trove_shim_players_online', 'heartbeat lately, token valid');
    counted('Connections', 'trove_shim_connections', 'of clients, open');
    counted('Heartbeats filtered', 'trove_shim_heartbeats_total', 'since the start');
    const shed = Object.keys(s).filter((series) => series.startsWith('trove_shim_shed_total{'));
    list.push({ label: 'Turned away', text: whole(shed.reduce((sum, series) => sum + s[series], 0)), note: 'since the start', mood: shed.some((series) => s[series] > 0) ? 'warn' : undefined });
    counted('Sent twice', 'trove_shim_retries_total', 'since the start');
    const live = state.shim.upstreams.find((group) => group.live);
    const usable = live.instances.filter((instance) => instance.usable).length;
    list.push({ label: 'Instances usable', text: `${usable} of ${live.instances.length}`, note: `of ${live.name}, which is live`, mood: usable < live.instances.length ? 'bad' : 'good' });
  } else {
    counted('Finds credited', 'trove_credits_total', 'since the start');
    counted('Wallets in memory', 'trove_mirror_wallets');
    counted('Held polls', 'trove_held_polls', 'wait for news');
    counted('Connections', 'trove_connections', 'public, open');
    counted('Failovers', 'trove_store_failovers_total', 'history may have been cut');
    list.push({ label: 'Store', text: state.store.health, note: state.store.why ?? 'as it was heard last', mood: { up: 'good', recovering: 'warn' }[state.store.health] ?? 'bad' });
  }
  tiles(list);
}

const blocks = new Map();
/** A part of `home` with a heading, by its key; `build` makes what is in it. */
function block(home, key, build) {
  const name = `${home.id}/${key}`;
  if (!blocks.has(name)) {
    const node = make('div', 'block');
    const parts = build(node);
    home.append(node);
    blocks.set(name, parts);
  }
  return blocks.get(name);
}

const WINDOW_COLUMNS = [
  { title: 'Window' }, { title: 'Requests', n: true }, { title: 'Failed', n: true }, { title: 'Late', n: true },
  { title: 'p50', n: true }, { title: 'p95', n: true }, { title: 'p99', n: true }, { title: 'p99.9', n: true },
  { title: 'Burn: errors', n: true }, { title: 'Burn: latency', n: true }, { title: 'Holds' },
];

function showObjectives(sla) {
  const home = byId('objectives');
  if (sla.objectives.length === 0 && !home.firstChild) home.append(make('p', 'none', 'No objective of the settings is about a route that this process knows.'));
  for (const objective of sla.objectives) {
    const parts = block(home, objective.name, (node) => {
      const head = make('div', 'head');
      const title = make('h3', '', objective.name);
      const says = make('span', 'unit');
      const tag = make('span', 'tag');
      head.append(title, says, tag);
      const windows = make('div');
      node.append(head, windows);
      return { says, tag, windows };
    });
    const firing = objective.alerts.filter((alert) => alert.firing).map((alert) => `${alert.budget} over ${alert.long}`);
    set(parts.says, `${objective.percentile} % of ${objective.route} within ${ms(objective.latency_s)}, under ${percent(objective.error_ratio_max)} failed`
      + (firing.length > 0 ? `; burns too fast: ${[...new Set(firing)].join(', ')}` : ''));
    const [words, mood] = STATES[objective.state];
    set(parts.tag, words);
    setData(parts.tag, 'mood', mood);
    table(parts.windows, `${objective.name} by window`, WINDOW_COLUMNS, objective.windows.map((window) => {
      const partly = window.measured_s + 2 < window.seconds ? ` (of it ${span(window.measured_s)} measured)` : '';
      const bad = (isBad) => (isBad ? 'bad' : undefined);
      return [
        { text: window.window + partly },
        { text: whole(window.requests), n: true },
        { text: percent(window.error_ratio), n: true, mood: bad(window.errors_burn_rate > 1) },
        { text: percent(window.late_ratio), n: true, mood: bad(window.latency_burn_rate > 1) },
        ...[window.p50_s, window.p95_s, window.p99_s, window.p999_s].map((value) => ({ text: ms(value), n: true })),
        { text: window.requests > 0 ? times(window.errors_burn_rate) : '–', n: true },
        { text: window.requests > 0 ? times(window.latency_burn_rate) : '–', n: true },
        window.requests > 0 ? { text: window.holds ? 'yes' : 'no', tag: true, mood: window.holds ? 'good' : 'bad' } : { text: '–' },
      ];
    }), '');
  }
}

function showSlow(state) {
  const { slow } = state.sla;
  set(byId('slow-note'), `${ms(slow.threshold_s)} or longer, since the start, by whose fault`);
  const home = byId('causes');
  const causes = Object.entries(slow.since_start);
  const most = Math.max(1, ...causes.map(([, count]) => count));
  if (!home.firstChild) home.className = 'causes';
  const nodes = children(home, causes.length * 3, () => make('span'));
  causes.forEach(([cause, count], index) => {
    const [name, bar, figure] = [nodes[index * 3], nodes[index * 3 + 1], nodes[index * 3 + 2]];
    set(name, cause);
    if (!bar.firstChild) { bar.className = 'bar'; bar.setAttribute('aria-hidden', 'true'); bar.append(make('span')); }
    bar.firstChild.style.width = `${(count / most) * 100}%`;
    figure.className = 'n';
    const series = `trove_slow_requests_total{cause="${cause}"}`;
    set(figure, whole(state.samples[series]));
    setData(figure, 'series', series);
    setData(figure, 'value', state.samples[series]);
  });
  table(byId('examples'), 'Examples of slow requests', [
    { title: 'When' }, { title: 'Route' }, { title: 'Status', n: true }, { title: 'Cause' }, { title: 'Took', n: true }, { title: 'Of it' }, { title: 'Trace' },
  ], slow.examples.slice(0, 10).map((example) => {
    const parts = Object.entries(example.parts_s);
    const took = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
    return [
      { text: clock(example.at_ms) }, { text: example.route }, { text: example.status === 0 ? '–' : String(example.status), n: true },
      { text: example.cause, tag: true, mood: 'warn' }, { text: ms(took), n: true },
      { text: parts.filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]).map(([name, seconds]) => `${name} ${ms(seconds)}`).join(', ') },
      { text: example.trace_id ?? '–', mono: true },
    ];
  }), 'None was slow.');
}

function showHunts(state) {
  byId('hunts-card').hidden = false;
  const { hunts } = state;
  const note = [];
  if (state.hunts_in_all > hunts.length) note.push(`${hunts.length} of ${state.hunts_in_all}`);
  if (state.hunts_age_s === null) note.push('the store has not said yet');
  else if (state.hunts_age_s > 2) note.push(`as of ${span(state.hunts_age_s)} ago: the store does not answer`);
  set(byId('hunts-note'), note.length > 0 ? note.join('; ') : 'coins by state');
  const coins = ['recorded', 'credited', 'expired', 'pending', 'revoked'];
  const MOODS = { open: 'good', closed: 'warn' };
  table(byId('hunts'), 'Hunts and their coins', [
    { title: 'Hunt' }, { title: 'Name' }, { title: 'State' }, { title: 'Treasures', n: true },
    { title: 'Recorded', n: true }, { title: '= credited', n: true }, { title: '+ expired', n: true }, { title: '+ pending', n: true }, { title: '+ revoked', n: true },
  ], hunts.map((hunt) => [
    { text: hunt.id }, { text: hunt.name }, { text: hunt.state, tag: true, mood: MOODS[hunt.state] }, { text: whole(hunt.treasures), n: true },
    ...coins.map((kind) => ({ text: whole(hunt[kind]), n: true, series: `trove_coins{hunt="${hunt.id}",state="${kind}"}`, value: hunt[kind] })),
  ]), 'There is no hunt yet: trove hunt put FILE.');
}

function showFinds(finds) {
  byId('finds-card').hidden = false;
  table(byId('finds'), 'The latest finds', [
    { title: 'When' }, { title: 'Hunt' }, { title: 'Treasure' }, { title: 'Player’s number' }, { title: 'Coins', n: true },
  ], finds.slice(0, 10).map((find) => [
    { text: clock(find.found_at) }, { text: find.hunt }, { text: find.treasure ?? 'none' }, { text: find.player, mono: true }, { text: whole(find.coins), n: true },
  ]), 'None yet.');
}

/** A list of names and figures: rows of [name, series or nothing, text, mood]. */
function figures(home, label, s, rows) {
  const known = rows.filter(([, series]) => !series || s[series] !== undefined);
  table(home, label, [{ title: 'Figure' }, { title: 'Now', n: true }], known.map(([name, series, text, mood]) => [
    { text: name },
    { text: series ? (text ?? whole)(s[series]) : text, n: true, mood, series: series ?? undefined, value: series ? s[series] : undefined },
  ]), '');
}

/** All series of a name, whatever their labels. */
function sumOf(s, name) {
  const series = Object.keys(s).filter((key) => key === name || key.startsWith(`${name}{`));
  return series.reduce((sum, key) => sum + s[key], 0);
}

function showStore(state) {
  byId('store-card').hidden = false;
  const { store, samples: s } = state;
  const health = { up: ['up', 'good'], full: ['full: finds are refused', 'bad'], recovering: ['recovering from a failover', 'warn'], down: ['out of reach', 'bad'] }[store.health];
  figures(byId('store'), 'The store', s, [
    ['Health', null, health[0] + (store.why ? `: ${store.why}` : ''), health[1]],
    ['Place', null, store.place],
    ['Epoch', null, store.epoch],
    ['Failovers seen', 'trove_store_failovers_total'],
    ['Brought back after failovers', null, whole(sumOf(s, 'trove_replayed_total'))],
    ['Could not be brought back', null, whole(sumOf(s, 'trove_replay_dropped_total')), sumOf(s, 'trove_replay_dropped_total') > 0 ? 'bad' : undefined],
    ['Wallets in memory may lag by', 'trove_mirror_lag_seconds', ms],
    ['Batches committed', 'trove_store_batches_total'],
    ['Syncs to disk', 'trove_store_syncs_total'],
    ['Redis: memory', 'trove_redis_memory_bytes', bytes],
    ['Redis: feeds', 'trove_redis_feed_bytes', bytes],
    ['Redis: replicas', 'trove_redis_replicas'],
    ['Redis: replication lag', 'trove_redis_replication_lag_bytes', bytes],
    ['Redis: evicted keys (must be 0)', 'trove_redis_evicted_keys_total'],
    ['Redis: figures are old by', 'trove_redis_sample_age_seconds', span],
  ]);
}

function showProcess(state) {
  const s = state.samples;
  figures(byId('process'), 'The process', s, [
    ['Version', null, state.version],
    ['Runs for', null, span(state.up_s)],
    ['Processor time', 'trove_process_cpu_seconds_total', (seconds) => `${trim(seconds)} s`],
    ['Event loop busy', 'trove_event_loop_busy_seconds_total', (seconds) => `${trim(seconds)} s`],
    ['Memory', 'trove_process_resident_memory_bytes', bytes],
    ['Descriptors open', 'trove_process_open_fds'],
    ['Descriptors at most', 'trove_process_max_fds'],
    ['Tasks', 'trove_runtime_tasks'],
    ['Work waiting beside the loop', 'trove_beside_queue_depth'],
    ['Blocking work waiting', 'trove_blocking_jobs{state="queued"}'],
    ['Kept public answers', 'trove_shim_cache_bytes', bytes],
    ['Viewers of this page', null, whole(state.viewers)],
  ]);
}

function showUpstreams(state) {
  byId('upstreams-card').hidden = false;
  const home = byId('upstreams');
  for (const group of state.shim.upstreams) {
    const parts = block(home, group.name, (node) => {
      const head = make('div', 'head');
      const tag = make('span', 'tag');
      const note = make('span', 'unit');
      const button = make('button', '', `Switch to ${group.name} …`);
      button.type = 'button';
      button.addEventListener('click', () => askSwitch(group.name));
      head.append(make('h3', '', group.name), tag, note, button);
      const instances = make('div');
      node.append(head, instances);
      return { tag, note, button, instances };
    });
    set(parts.tag, group.live ? 'live' : 'standing by');
    setData(parts.tag, 'mood', group.live ? 'good' : undefined);
    set(parts.note, (group.queued > 0 ? `${whole(group.queued)} wait in its queue` : '') + (!group.live && !state.can_switch ? ' no admin key is set, so nothing can be switched' : ''));
    parts.button.hidden = group.live || !state.can_switch;
    const labels = (instance) => `{instance="${instance.address}",upstream="${group.name}"}`;
    table(parts.instances, `Instances of ${group.name}`, [
      { title: 'Instance' }, { title: 'State' }, { title: 'Last check' }, { title: 'Under way', n: true }, { title: 'Links', n: true }, { title: 'Idle', n: true }, { title: 'Forwarded', n: true },
    ], group.instances.map((instance) => {
      const [text, mood] = instance.ejected ? ['ejected', 'bad'] : !instance.healthy ? ['unhealthy', 'bad'] : instance.starting_slowly ? ['starting slowly', 'warn'] : ['healthy', 'good'];
      const series = `trove_shim_forwarded_total${labels(instance)}`;
      return [
        { text: instance.address, mono: true }, { text, tag: true, mood }, { text: instance.last_check || '–' },
        { text: whole(instance.outstanding), n: true }, { text: whole(instance.links), n: true }, { text: whole(instance.idle_connections), n: true },
        { text: whole(state.samples[series]), n: true, series, value: state.samples[series] },
      ];
    }), '');
  }
}

function show(state) {
  set(byId('role'), state.role === 'shim' ? 'shim' : 'server');
  const title = `${state.instance} · Trove ${state.role}`;
  if (document.title !== title) document.title = title;
  set(byId('instance'), `${state.instance}, version ${state.version}, runs for ${span(state.up_s)}${state.draining ? ', draining' : ''}`);
  showVerdict(state.sla);
  showTiles(state);
  showObjectives(state.sla);
  showSlow(state);
  showProcess(state);
  if (state.role === 'shim') {
    showUpstreams(state);
  } else {
    showHunts(state);
    showFinds(state.finds);
    showStore(state);
  }
  if (state.moment && (moments.length === 0 || state.moment.time_ms > moments[moments.length - 1].time_ms)) {
    moments.push(state.moment);
    if (moments.length > KEPT_MAX) moments.shift();
    plot();
  }
  document.body.dataset.shown = String(Number(document.body.dataset.shown ?? 0) + 1);
}

// ---- switching

const dialog = byId('switch');
let switching = null;

function askSwitch(group) {
  switching = group;
  set(byId('switch-group'), group);
  byId('switch-key').value = '';
  dialog.showModal();
}

function say(text, mood) {
  set(byId('switch-said'), text);
  setData(byId('switch-said'), 'mood', mood);
}

byId('switch-cancel').addEventListener('click', () => dialog.close());
dialog.addEventListener('close', () => { byId('switch-key').value = ''; });
byId('switch-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const key = byId('switch-key').value;
  const group = switching;
  dialog.close();
  say(`Asking the instances of ${group} …`);
  try {
    const answer = await fetch('shim/switch', {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ group }),
    });
    const body = await answer.json();
    if (answer.ok) say(`${group} is live.`, 'good');
    else say(`Not switched: ${body.detail ?? answer.status}`, 'bad');
  } catch {
    say('Not known whether it switched: the connection broke. See which is live below.', 'bad');
  }
});

// ---- the connection

let source = null;
let heard = 0;
let retryMs = RETRY_MS_MIN;
let lostAt = null;

function link(state, text) {
  setData(byId('link'), 'state', state);
  set(byId('link'), text);
}

function connect() {
  source = new EventSource('ops/events');
  heard = Date.now();
  source.addEventListener('past', (event) => {
    const past = JSON.parse(event.data);
    moments = past.moments;
    if (past.kinds.join() !== kinds.join()) {
      kinds = past.kinds;
      startPlots();
    }
    plot();
    heard = Date.now();
  });
  source.addEventListener('state', (event) => {
    const state = JSON.parse(event.data);
    heard = Date.now();
    retryMs = RETRY_MS_MIN;
    lostAt = null;
    byId('lost').hidden = true;
    document.body.classList.remove('is-lost');
    link('live', state.draining ? 'Live, draining' : 'Live');
    show(state);
  });
  source.addEventListener('error', lost);
}

/** The browser would try again by itself, all pages at the same pace: this does it with jitter, and says so. */
function lost() {
  if (source === null) return;
  source.close();
  source = null;
  lostAt ??= heard;
  link('lost', 'Connection lost');
  const banner = byId('lost');
  set(banner, `No connection to this process since ${clock(lostAt)}. The figures below are of then. Trying again …`);
  banner.hidden = false;
  document.body.classList.add('is-lost');
  setData(byId('verdict'), 'state', 'no_data');
  set(byId('verdict-text'), 'Not known now');
  if (plots.rates) plot();
  setTimeout(connect, retryMs * (0.5 + Math.random()));
  retryMs = Math.min(retryMs * 2, RETRY_MS_MAX);
}

setInterval(() => {
  if (source !== null && Date.now() - heard > SILENT_MS_MAX) lost();
}, 500);

connect();
