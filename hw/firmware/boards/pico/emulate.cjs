// Emulator of a Pico (rp2040js) with its USB port on a Unix socket: a connection opens the port.
//
//     NODE_PATH=FOLDER/node_modules node emulate.cjs IMAGE.bin SOCKET
//
// Commands on stdin, one per line, each answered by a line on stdout:
//     pin N 0|1      an input's level              adc N COUNTS    reading of the converter's channel N (0 to 4095)
//     turn COUNTS    turn the encoder              pio 0|1         stop the decoder's state machine, or run it
//     outputs        state of the output pins, as JSON
//     suspend, resume   the bus
//     reset          power-cycle; an open connection stays open
//     hang           put the program into an endless loop
'use strict';
const fs = require('node:fs');
const net = require('node:net');
const readline = require('node:readline');
const { RP2040, GPIOPinState, ConsoleLogger, LogLevel } = require('rp2040js');

const [imagePath, socketPath] = process.argv.slice(2);
const CYCLE_NS = 8;
const LATE_NS = 50e6; // beyond this, the board pauses instead of catching up with the wall clock
const ENCODER_A = 2;
const ENCODER_B = 3;
const ROSC = 0x40060;
const RANDOMBIT = 0x1c;
const DATA = 2; // endpoint
const SSI = 0x18000;
const WATCHDOG = 0x40058;
const FED = 0x4645;
const SSI_DATA = 0x60;
const READ_UNIQUE_ID = 0x4b;
const UNIQUE_ID = [0xe6, 0x61, 0x38, 0x52, 0x83, 0x46, 0x87, 0x2a];
const SIE_STATUS = 0x50;
const SUSPENDED = 1 << 4;
const RESUME = 1 << 11;
const STATUS_NS = 50e3;
const PIO_STEPS = 12; // one pass of its program, including the drop when the queue is full
const ADC_US = 0.1; // instead of 2, because waiting for conversions takes most of the chip's time

let board = null;
let starts = 0;
let line = null; // the connection that has the port open
const inputs = new Map(); // levels of the pins, kept for the next start
const adc = [0, 0, 0, 0, 0];
const encoder = { count: 0 };

const setup = (type, request, value, index, length) =>
  Uint8Array.of(type, request, value & 255, value >> 8, index & 255, index >> 8, length & 255, length >> 8);

/** Host side of the bus: one control transfer at a time, and the port's bytes. */
class UsbHost {
  constructor(usb) {
    this.usb = usb;
    this.transfers = [];
    this.toSend = [];
    this.room = 0; // bytes that the device can accept now
    this.configured = false;
    this.ended = usb.rp2040.clock.createAlarm(() => this.finish());
    usb.onUSBEnabled = () => usb.resetDevice();
    usb.onResetReceived = () => this.enumerate();
    usb.onEndpointWrite = (endpoint, bytes) => this.heard(endpoint, bytes);
    usb.onEndpointRead = (endpoint, n) => this.asked(endpoint, n);
  }

  enumerate() {
    const get = (value, n) => this.control(setup(0x80, 6, value, 0, n));
    get(0x0100, 8);
    this.control(setup(0x00, 5, 7, 0, 0)); // address
    get(0x0100, 18);
    get(0x0200, 9);
    get(0x0200, 255, (bytes) => { this.configuration = bytes; });
    for (let i = 0; i < 4; i++) this.control(setup(0x80, 6, 0x0300 + i, 0x0409, 255), null, (b) => this.string(i, b));
    this.control(setup(0x00, 9, 1, 0, 0)); // configuration
    this.control(setup(0x21, 0x20, 0, 0, 7), Uint8Array.of(0, 0x10, 0x0e, 0, 0, 0, 8), () => {
      this.configured = true;
      if (line) this.open(true);
      say(`ready ${this.product} ${this.serial}`);
    });
  }

  string(i, bytes) {
    const text = Buffer.from(bytes.slice(2)).toString('utf16le');
    if (i === 2) this.product = text;
    if (i === 3) this.serial = text;
  }

  /** Port opened or closed, by DTR. */
  open(yes) {
    if (!yes) this.toSend = [];
    if (this.configured) this.control(setup(0x21, 0x22, yes ? 3 : 0, 0, 0));
  }

  control(packet, data = null, done = () => {}) {
    this.transfers.push({ packet, data, done, got: [], wanted: packet[6] | (packet[7] << 8) });
    if (this.transfers.length === 1) this.usb.sendSetupPacket(packet);
  }

  finish() {
    const transfer = this.transfers.shift();
    transfer.done(Uint8Array.from(transfer.got));
    if (this.transfers.length) this.usb.sendSetupPacket(this.transfers[0].packet);
  }

  heard(endpoint, bytes) {
    if (endpoint === DATA && line) line.write(bytes);
    const transfer = this.transfers[0];
    if (endpoint !== 0 || !transfer) return;
    if (transfer.packet[0] & 0x80) transfer.got.push(...bytes);
    else this.finish();
  }

  asked(endpoint, n) {
    if (endpoint === DATA) {
      this.room = n;
      this.pump();
    } else if (endpoint === 0) {
      const transfer = this.transfers[0];
      this.usb.endpointReadDone(0, transfer.data ?? new Uint8Array(0));
      // The emulator reports a packet's last bytes only after it has notified the device that they are gone.
      if (transfer.packet[0] & 0x80) this.ended.schedule(STATUS_NS);
    }
  }

  send(bytes) {
    this.toSend.push(...bytes);
    this.pump();
  }

  pump() {
    if (!this.room || !this.toSend.length) return;
    const bytes = this.toSend.splice(0, this.room);
    this.room = 0;
    this.usb.endpointReadDone(DATA, Uint8Array.from(bytes));
  }
}

/** Start a board at its first instruction, 0.2 s after its reset. */
class Board {
  constructor(hung = false) {
    this.chip = new RP2040();
    this.clock = this.chip.clock;
    const { chip } = this;
    chip.logger = new ConsoleLogger(LogLevel.Error);
    chip.flash.set(fs.readFileSync(imagePath));
    chip.core.PC = 0x10000000;
    chip.peripherals[ROSC].readUint32 = (offset) => (offset === RANDOMBIT ? Math.random() < 0.5 ? 1 : 0 : 0);
    this.identifyFlash();
    const watchdog = chip.peripherals[WATCHDOG];
    watchdog.scratchData[0] = starts++;
    if (hung) [watchdog.scratchData[1], watchdog.reason] = [FED, 1];
    watchdog.onWatchdogTrigger = () => {
      this.hung = true;
      watchdog.alarm.enable = false; // it would fire again in the same nanosecond
    };
    chip.adc.channelValues = adc;
    chip.adc.sampleTime = ADC_US;
    this.tamePio();
    for (const [pin, high] of inputs) chip.gpio[pin].setInputValue(high);
    this.tameUsb();
    this.host = new UsbHost(chip.usbCtrl);
    this.sinceNs = process.hrtime.bigint();
    this.hung = false;
  }

  /** The PIO runs when it is read, not in parallel with the chip's clock. */
  tamePio() {
    const pio = this.chip.pio[0];
    const read = pio.readUint32.bind(pio);
    pio.run = () => {};
    pio.readUint32 = (offset) => {
      this.stepPio();
      return read(offset);
    };
  }

  /** SUSPENDED is cleared by writing it, as on the chip. */
  tameUsb() {
    const usb = this.chip.usbCtrl;
    const write = usb.writeUint32.bind(usb);
    usb.writeUint32 = (offset, value) => {
      if (offset === SIE_STATUS) usb.sieStatus &= ~(usb.rawWriteValue & SUSPENDED);
      write(offset, value);
    };
  }

  bus(bit) {
    this.chip.usbCtrl.sieStatus |= bit;
    this.chip.usbCtrl.sieStatusUpdated();
  }

  /** Answer of the flash to a command: its unique number, after four idle bytes. */
  identifyFlash() {
    const ssi = this.chip.peripherals[SSI];
    const write = ssi.writeUint32.bind(ssi);
    let answer = [];
    ssi.writeUint32 = (offset, value) => {
      write(offset, value);
      if (offset !== SSI_DATA) return;
      ssi.dr0 = answer.shift() ?? 0;
      if (value === READ_UNIQUE_ID) answer = [0, 0, 0, 0, ...UNIQUE_ID];
    };
  }

  stepPio() {
    const decoder = this.chip.pio[0].machines[0];
    for (let i = 0; i < PIO_STEPS && decoder.enabled; i++) decoder.step();
  }

  /** Catch up with the wall clock. */
  run() {
    let nowNs = Number(process.hrtime.bigint() - this.sinceNs);
    if (nowNs - this.clock.nanos > LATE_NS) {
      this.sinceNs += BigInt(Math.floor(nowNs - this.clock.nanos - LATE_NS));
      nowNs = this.clock.nanos + LATE_NS;
    }
    const { core } = this.chip;
    while (this.clock.nanos < nowNs && !this.hung) {
      if (core.waiting) this.clock.tick(Math.max(Math.min(this.clock.nanosToNextAlarm, nowNs - this.clock.nanos), 1));
      else this.clock.tick(core.executeInstruction() * CYCLE_NS);
    }
  }

  turn(counts) {
    for (let n = Math.abs(counts); n > 0; n--) {
      encoder.count += Math.sign(counts);
      const phase = ((encoder.count % 4) + 4) % 4; // A leading B counts up
      setPin(ENCODER_A, phase === 1 || phase === 2);
      setPin(ENCODER_B, phase >= 2);
      this.stepPio();
    }
  }

  outputs() {
    const { gpio, pwm } = this.chip;
    const driven = gpio.filter((p) => p.value === GPIOPinState.High || p.value === GPIOPinState.Low);
    const level = (p) => {
      const cc = pwm.channels[Math.floor(p.index / 2) % 8].cc;
      return p.index % 2 ? cc >>> 16 : cc & 0xffff;
    };
    return JSON.stringify(
      Object.fromEntries(driven.map((p) => [p.index, p.functionSelect === 4 ? level(p) : Number(p.outputValue)])),
    );
  }
}

function say(text) {
  process.stdout.write(`${text}\n`);
}

function setPin(pin, high) {
  inputs.set(pin, high);
  board.chip.gpio[pin].setInputValue(high);
}

function obey(command) {
  const [verb, a, b] = command.split(' ');
  const { chip } = board;
  if (verb === 'pin') setPin(Number(a), b === '1');
  else if (verb === 'adc') adc[Number(a)] = Number(b);
  else if (verb === 'turn') board.turn(Number(a));
  else if (verb === 'pio') chip.pio[0].machines[0].enabled = a === '1';
  else if (verb === 'hang') {
    chip.sramView.setUint16(0x3f000, 0xe7fe, true); // b .
    chip.core.PM = true;
    chip.core.waiting = false;
    chip.core.PC = 0x2003f000;
  } else if (verb === 'suspend') board.bus(SUSPENDED);
  else if (verb === 'resume') board.bus(RESUME);
  else if (verb === 'reset') board = new Board();
  else if (verb === 'outputs') return say(board.outputs());
  else return say(`unknown command ${verb}`);
  return say('ok');
}


function live() {
  board.run();
  if (board.hung) {
    say('watchdog');
    if (line) line.destroy(); // a device that leaves the bus closes its port
    line = null;
    board = new Board(true);
  }
  setTimeout(live, 1);
}

board = new Board();
const server = net.createServer((connection) => {
  if (line) {
    line.destroy(); // closed, but not yet reported
    board.host.open(false);
  }
  line = connection;
  connection.setNoDelay(true);
  board.host.open(true);
  connection.on('data', (bytes) => board.host.send(bytes));
  connection.on('error', () => {});
  connection.on('close', () => {
    if (line !== connection) return;
    line = null;
    board.host.open(false);
  });
});
fs.rmSync(socketPath, { force: true });
server.listen(socketPath);
readline.createInterface({ input: process.stdin }).on('line', obey).on('close', () => process.exit(0));
process.on('SIGTERM', () => process.exit(0));
live();
