// What leaves the page: the model as files, the command that does the same, and the result as a
// line of text.

// The parts that a learning went without, as the payload lists the switches
function learnedWithout(settings) {
  return settings.learnSwitches.filter(({ name }) => !settings.learn[name]);
}

// "reverse, small, seed 7, learned with everything: answer given 1.000, alone 1.000, 620 steps"
function resultLine(settings, counted) {
  const { task, name, seed, lengths, shipped } = settings;
  const usual = shipped.config.data.train_length;
  const isUsual = lengths[0] === usual[0] && lengths[1] === usual[1];
  const span = isUsual ? "" : `, lengths ${lengths[0]} to ${lengths[1]}`;
  const without = learnedWithout(settings).map(({ words }) => words).join(" and ");
  const how = without ? `without ${without}` : "with everything";
  const [given, alone] = [counted.given, counted.alone].map((n) => (n / counted.of).toFixed(3));
  const shares = `answer given ${given}, alone ${alone}`;
  return `${task}, ${name}, seed ${seed}${span}, learned ${how}: ${shares}, ${counted.step} steps`;
}

// The config of this learning, section by section, with the keys that its shipped config leaves out
// left out; null where no config says it, because no fault takes several parts away.
function givenConfig(settings) {
  const without = learnedWithout(settings), { task, seed, lengths, steps, shipped } = settings;
  if (without.length > 1) return null;
  const given = structuredClone(shipped.given);
  given.data = { ...given.data, task, train_length: lengths };
  given.train = { ...given.train, max_steps: steps };
  for (const [key, value] of Object.entries(settings.config.model)) {
    if (value !== shipped.config.model[key]) given.model[key] = value;
  }
  return { seed, ...(without.length ? { fault: without[0].fault } : {}), ...given };
}

// The text of config.yaml, or null. A value in JSON is one in YAML.
function configOf(settings) {
  const given = givenConfig(settings);
  if (!given) return null;
  const lines = [`# ${settings.rule}`, `# Learned in a page of toytrans ${settings.version}.`];
  for (const [key, value] of Object.entries(given)) {
    const isSection = typeof value === "object" && !Array.isArray(value);
    lines.push(isSection ? `${key}:` : `${key}: ${JSON.stringify(value)}`);
    if (!isSection) continue;
    for (const [name, each] of Object.entries(value)) {
      lines.push(`  ${name}: ${JSON.stringify(each)}`);
    }
  }
  return `${lines.join("\n")}\n`;
}

// The command that does the same, or null where none does
function commandOf(settings) {
  const given = givenConfig(settings), { shipped, base } = settings;
  if (!given) return null;
  const words = ["toytrans train", `--config configs/${base}.yaml`];
  if (given.seed) words.push(`--seed ${given.seed}`);
  for (const section of ["data", "model", "train"]) {
    for (const [key, value] of Object.entries(given[section])) {
      const text = JSON.stringify(value).replaceAll('"', "");
      if (text === JSON.stringify(shipped.given[section][key])?.replaceAll('"', "")) continue;
      words.push(`--set ${section}.${key}=${text}`);
    }
  }
  if (given.fault) words.push(`--break ${given.fault}`);
  return words.join(" ");
}

// The bytes of model.safetensors, as `toytrans export` writes it: the size of the header, the
// header, and all numbers in fp32, low byte first. weights: a message of that type
function modelFile(settings, { step, tensors, shapes, pairsUsed }) {
  const about = { ...settings.about, toytrans: settings.version, step, pairs_used: pairsUsed };
  const header = { __metadata__: { format: "pt", toytrans: JSON.stringify(about) } };
  let end = 0;
  for (const [name, shape] of shapes) {
    const first = end;
    end += 4 * countOf(shape);
    header[name] = { dtype: "F32", shape, data_offsets: [first, end] };
  }
  const json = JSON.stringify(header), encoder = new TextEncoder();
  const fill = -encoder.encode(json).length & 7;  // numbers begin at a multiple of 8
  const text = encoder.encode(json + " ".repeat(fill));
  const file = new Uint8Array(8 + text.length + end), view = new DataView(file.buffer);
  view.setBigUint64(0, BigInt(text.length), true);
  file.set(text, 8);
  let at = 8 + text.length;
  for (const [name] of shapes) {
    for (const value of tensors[name]) {
      view.setFloat32(at, value, true);
      at += 4;
    }
  }
  return file;
}
