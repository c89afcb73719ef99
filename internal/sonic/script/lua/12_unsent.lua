
-- Effects that do not go to the stream.
--
--   * With `outbox: off` (`sends`) an effect is published to whoever ships, who holds it in memory. What is large goes to the stream, and is announced.
--   * When nobody listens, or who ships can hold no more, or the outbox is full and writes go on (`skips`), an effect is dropped. What it changed is
--     noted in the hash `unsent`, and its state is shipped later: see sonic_resend.
--
-- In both cases the stream keeps the clock: its last id is that of the last effect.
--
-- Fields of the hash: "k<db>:<key>" of a key; "e<db>:<length of key>:<key><element>" to the letter of the type of an element;
-- "I<db>:<key>", and "i" or "j" with a field or member as "e", to the sum of the changes of a counter.
local unsent = {
	skips = false, sends = false,
	sent = 0, -- writes published since the library was loaded
	told = 0, -- of these, how many the topic has
}

-- Elements of effects: the letter of the type, where the first one is, how far the next one is from it.
local ELEMENTS_OF = {H = {'h', 6, 2}, A = {'s', 6, 1}, Z = {'z', 7, 2}, h = {'h', 6, 1}, a = {'s', 6, 1}, z = {'z', 6, 1}}

-- each_effect calls take with each of packed effects, until it returns false.
local function each_effect(packed, take)
	local offset = 0
	while offset >= 0 and offset < #packed do
		local list = {cmsgpack.unpack_limit(packed, 100, offset)}
		offset = list[1]
		for i = 2, #list do
			if take(list[i]) == false then return end
		end
	end
end

function unsent.lose(out, n)
	if n > 0 then call('HINCRBY', state(out, 'meta'), 'lost', format('%d', n)) end
end

-- mark notes what packed effects changed. The script is in db 0.
function unsent.mark(out, packed)
	local hash, lost = state(out, 'unsent'), 0
	each_effect(packed, function(e)
		local op, name = e[1], e[3] .. ':' .. e[4]
		local function element(kind, of) return kind .. e[3] .. ':' .. DIGITS[#e[4]] .. ':' .. e[4] .. of end
		local elements = ELEMENTS_OF[op]
		if elements then
			if call('HEXISTS', hash, 'k' .. name) == 1 then return end
			for i = elements[2], #e, elements[3] do call('HSET', hash, element('e', e[i]), elements[1]) end
		elseif op == 'I' then
			if failed(try('HINCRBY', hash, 'I' .. name, e[5])) then lost = lost + 1 end
		elseif op == 'i' then
			if failed(try('HINCRBY', hash, element('i', e[5]), e[6])) then lost = lost + 1 end
		elseif op == 'j' then
			if failed(try('HINCRBYFLOAT', hash, element('j', e[5]), e[6])) then lost = lost + 1 end
		elseif op == 'P' then
			lost = lost + 1
		else
			call('HSET', hash, 'k' .. name, '')
		end
	end)
	unsent.lose(out, lost)
end

-- publish sends an entry to who ships, and tells whether anybody listens. Shard channels, for no pattern of a client fits them.
function unsent.publish(out, tx, id, effects, writes)
	local large = #effects > PIECE
	local head = format('%d %d', unsent.sent + writes, writes) .. ' ' .. id .. ' ' .. (tx or '') .. ' ' .. (large and 'l' or '')
	if call('SPUBLISH', state(out, 'live'), head .. '\n' .. (large and '' or effects)) == 0 then return false end
	unsent.sent = unsent.sent + writes
	if large then
		local last = in_pieces(out, effects, id)
		if tx then
			call('XADD', out, id, 'e', last, 't', tx)
		else
			call('XADD', out, id, 'e', last)
		end
	end
	open_tx = tx or open_tx
	return true
end

-- op_of returns the first op of packed effects, '' when there are none.
local function op_of(packed)
	local op = ''
	each_effect(packed, function(e)
		op = e[1]
		return false
	end)
	return op
end

-- take_unsent takes an entry in place of the stream. It returns the entry's id; nil when the entry is for the stream, false when it is for nobody.
local function take_unsent(out, db, tx, effects, notes, writes)
	local op = unsent.skips and op_of(effects)
	local asks = op == 'N' or op == 'O' -- wants and their answers: they are few, and somebody waits for them
	if asks and not unsent.sends then return nil end
	if op == '_' or op == '' then return false end -- beats can wait; the end of a transaction that was dropped
	if db ~= '0' then call('SELECT', '0') end
	local id = next_id(#effects)
	local sent = (not op or asks) and unsent.publish(out, tx, id, effects, writes)
	if not sent then
		op = op or op_of(effects)
		if op == 'N' or op == 'O' then return nil end -- they are of db 0
		if op == '_' or op == '' then
			if db ~= '0' then call('SELECT', db) end
			return false
		end
		unsent.mark(out, effects)
	end
	if not sent or #effects <= PIECE then call('XSETID', out, id) end
	top = id
	if notes then
		for i = 2, #notes, 2 do notes[i] = id .. notes[i] end
		for i = 1, #notes, SLICE do
			call('HSET', state(out, 'ver'), unpack(notes, i, math.min(i + SLICE - 1, #notes)))
		end
	end
	if db ~= '0' then call('SELECT', db) end
	return id
end

function unsent.choose(sends, skips)
	unsent.sends, unsent.skips = sends, skips
	divert = (sends or skips) and take_unsent or nil
end
